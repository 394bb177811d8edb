// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.einride.tech/aip/filtering"
	expr "google.golang.org/genproto/googleapis/api/expr/v1alpha1"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/pkg/audit"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// Limits of a filter. Its cost for the database grows with the number of comparisons, not with their values.
const (
	maxFilterLength      = 2048
	maxFilterComparisons = 32
)

// comparison is one leaf of a filter: a field, an operator and the value as text.
type comparison struct {
	field, operator, value string
}

// filterFields lists what a filter may speak of. Each entry turns a comparison into SQL over fixed column names; values
// are bound, never written into the statement.
func filterFields() map[string]func(*filterSQL, comparison) (string, error) {
	return map[string]func(*filterSQL, comparison) (string, error){
		"owner":          text("owner"),
		"action":         action,
		"operation":      enum("operation", "OPERATION_", auditv1.Operation_value),
		"outcome":        enum("outcome", "OUTCOME_", auditv1.Outcome_value),
		"actor.id":       text("actor_id"),
		"actor.type":     text("actor_type"),
		"resource.id":    text("resource_id"),
		"resource.type":  text("resource_type"),
		"correlation_id": indexedText("correlation_id"),
		"trace_id":       indexedText("trace_id"),
		"occur_time":     occurTime,
	}
}

// parseFilter turns an AIP-160 filter into a condition on audit_logs. An error is INVALID_ARGUMENT on the field
// "filter" and names what it does not accept.
func parseFilter(filter string) (store.Predicate, error) {
	if len(filter) > maxFilterLength {
		return store.Predicate{}, badFilter("must have at most %d characters", maxFilterLength)
	}
	if strings.TrimSpace(filter) == "" {
		return store.Predicate{}, nil
	}
	var parser filtering.Parser
	parser.Init(filter)
	parsed, err := parser.Parse()
	if err != nil {
		return store.Predicate{}, badFilter("is not an AIP-160 filter, such as: actor.id = \"x\" AND action = \"auth.*\"")
	}
	sql := filterSQL{fields: filterFields()}
	condition, err := sql.condition(parsed.GetExpr())
	if err != nil {
		return store.Predicate{}, err
	}
	return store.Predicate{SQL: condition, Args: sql.args}, nil
}

// filterSQL collects the values while the condition is built.
type filterSQL struct {
	fields      map[string]func(*filterSQL, comparison) (string, error)
	args        []any
	comparisons int
}

func (f *filterSQL) bind(value any) string {
	f.args = append(f.args, value)
	return "$" + strconv.Itoa(len(f.args))
}

// condition walks the filter's tree.
func (f *filterSQL) condition(e *expr.Expr) (string, error) {
	call := e.GetCallExpr()
	if call == nil {
		return "", badFilter("must be made of comparisons, such as: owner = \"auth\"")
	}
	switch call.GetFunction() {
	case filtering.FunctionAnd, filtering.FunctionOr:
		left, err := f.condition(call.GetArgs()[0])
		if err != nil {
			return "", err
		}
		right, err := f.condition(call.GetArgs()[1])
		if err != nil {
			return "", err
		}
		return "(" + left + " " + call.GetFunction() + " " + right + ")", nil
	case filtering.FunctionNot:
		inner, err := f.condition(call.GetArgs()[0])
		if err != nil {
			return "", err
		}
		return "(NOT " + inner + ")", nil
	case filtering.FunctionFuzzyAnd:
		return "", badFilter("must join comparisons with AND or OR")
	default:
		return f.comparison(call)
	}
}

func (f *filterSQL) comparison(call *expr.Expr_Call) (string, error) {
	if f.comparisons++; f.comparisons > maxFilterComparisons {
		return "", badFilter("must have at most %d comparisons", maxFilterComparisons)
	}
	if len(call.GetArgs()) != 2 {
		return "", badFilter("has no function %q", call.GetFunction())
	}
	field, ok := qualifiedName(call.GetArgs()[0])
	column, known := f.fields[field]
	if !ok || !known {
		return "", badFilter("has no field %q", field).With("field", strings.ToValidUTF8(field, "\uFFFD"))
	}
	value, ok := literal(call.GetArgs()[1])
	if !ok {
		return "", badFilter("must compare %s with a quoted text", field)
	}
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return "", badFilter("must compare %s with valid UTF-8 without NUL", field)
	}
	return column(f, comparison{field: field, operator: call.GetFunction(), value: value})
}

// qualifiedName reads "actor.id" from the tree.
func qualifiedName(e *expr.Expr) (string, bool) {
	if ident := e.GetIdentExpr(); ident != nil {
		return ident.GetName(), true
	}
	if member := e.GetSelectExpr(); member != nil {
		parent, ok := qualifiedName(member.GetOperand())
		return parent + "." + member.GetField(), ok
	}
	return "", false
}

// literal reads the right side: a quoted text, a bare word or dotted name as text, or timestamp("…").
func literal(e *expr.Expr) (string, bool) {
	if constant, ok := e.GetConstExpr().GetConstantKind().(*expr.Constant_StringValue); ok {
		return constant.StringValue, true
	}
	if call := e.GetCallExpr(); call.GetFunction() == filtering.FunctionTimestamp && len(call.GetArgs()) == 1 {
		return literal(call.GetArgs()[0])
	}
	return qualifiedName(e)
}

// equality translates the two operators that texts have.
func equality(c comparison) (string, error) {
	switch c.operator {
	case filtering.FunctionEquals:
		return " = ", nil
	case filtering.FunctionNotEquals:
		return " <> ", nil
	default:
		return "", badFilter("must use = or != with %s", c.field)
	}
}

func text(column string) func(*filterSQL, comparison) (string, error) {
	return func(f *filterSQL, c comparison) (string, error) {
		operator, err := equality(c)
		if err != nil {
			return "", err
		}
		return column + operator + f.bind(c.value), nil
	}
}

// indexedText is text for a column whose index leaves out empty values: without the second condition, the planner
// cannot know that a bound value is in the index.
func indexedText(column string) func(*filterSQL, comparison) (string, error) {
	plain := text(column)
	return func(f *filterSQL, c comparison) (string, error) {
		condition, err := plain(f, c)
		if err != nil || c.operator != filtering.FunctionEquals || c.value == "" {
			return condition, err
		}
		return "(" + condition + " AND " + column + " <> '')", nil
	}
}

// enum accepts the short names that the column holds ("CREATE") and the contract's ("OPERATION_CREATE").
func enum(column, prefix string, values map[string]int32) func(*filterSQL, comparison) (string, error) {
	plain := text(column)
	return func(f *filterSQL, c comparison) (string, error) {
		c.value = strings.TrimPrefix(c.value, prefix)
		if number, ok := values[prefix+c.value]; !ok || number == 0 {
			return "", badFilter("has no %s %q", c.field, c.value)
		}
		return plain(f, c)
	}
}

// action matches exactly, or by prefix when the value ends in "*".
func action(f *filterSQL, c comparison) (string, error) {
	prefix, wildcard := strings.CutSuffix(c.value, "*")
	if strings.Contains(prefix, "*") {
		return "", badFilter("may have a * in action only at its end")
	}
	operator, err := equality(c)
	if err != nil {
		return "", err
	}
	if !wildcard {
		return "action" + operator + f.bind(c.value), nil
	}
	// A range instead of LIKE: the index is usable with bound values, and nothing needs to be escaped.
	inside := "action ~>=~ " + f.bind(prefix)
	if end, bounded := after(prefix); bounded {
		inside += " AND action ~<~ " + f.bind(end)
	}
	if c.operator == filtering.FunctionNotEquals {
		return "(NOT (" + inside + "))", nil
	}
	return "(" + inside + ")", nil
}

// after returns the smallest text that is larger, byte by byte, than every text that begins with prefix; false if there
// is none that Postgres could take.
func after(prefix string) (string, bool) {
	if prefix == "" {
		return "", false
	}
	last, size := utf8.DecodeLastRuneInString(prefix)
	switch last {
	case utf8.MaxRune:
		return after(prefix[:len(prefix)-size])
	case 0xD7FF: // the next code points are surrogates
		last = 0xE000
	default:
		last++
	}
	return prefix[:len(prefix)-size] + string(last), true
}

// occurTime compares times. An id's own time lies within MaxClockSkew of occur_time, so the condition on the id changes
// no result and lets the primary key skip what is too old or too new.
func occurTime(f *filterSQL, c comparison) (string, error) {
	at, err := time.Parse(time.RFC3339Nano, c.value)
	if err != nil {
		return "", badFilter("must compare occur_time with an RFC 3339 time, such as \"2026-11-01T00:00:00Z\"")
	}
	if at.Year() < 1970 || at.Year() > 9999 {
		return "", badFilter("must compare occur_time with a year from 1970 to 9999")
	}
	newest, oldest := at.Add(audit.MaxClockSkew+time.Second), at.Add(-audit.MaxClockSkew-time.Second)
	switch c.operator {
	case filtering.FunctionEquals, filtering.FunctionNotEquals:
		operator, err := equality(c)
		return "occur_time" + operator + f.bind(at), err
	case filtering.FunctionLessThan, filtering.FunctionLessEquals:
		return "(occur_time " + c.operator + " " + f.bind(at) + " AND event_id < " + f.bind(firstID(newest)) + ")", nil
	case filtering.FunctionGreaterThan, filtering.FunctionGreaterEquals:
		return "(occur_time " + c.operator + " " + f.bind(at) + " AND event_id >= " + f.bind(firstID(oldest)) + ")", nil
	default:
		return "", badFilter("must use =, !=, <, <=, > or >= with occur_time")
	}
}

// firstID is the smallest id of the moment t, after RFC 9562 §5.7.
func firstID(t time.Time) uuid.UUID {
	var id uuid.UUID
	ms := max(t.UnixMilli(), 0)
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	return id
}

func badFilter(format string, args ...any) *apperr.Error {
	description := fmt.Sprintf(format, args...)
	return apperr.InvalidArgument("INVALID_FILTER", "filter "+description,
		apperr.Violation{Field: "filter", Description: description})
}
