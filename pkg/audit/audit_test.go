// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// valid returns an event that uses every field of the contract.
func valid() *auditv1.AuditEvent {
	id := uuid.Must(uuid.NewV7())
	return &auditv1.AuditEvent{
		AuditId: id.String(), EventType: "app.project_member.added.v1", SchemaVersion: 1,
		Owner: "app", Action: "app.project_member.added", Operation: auditv1.Operation_OPERATION_CREATE,
		Actor: &auditv1.Actor{
			Type: "user", Id: id.String(), DisplayName: Plain("Ada"), SessionId: "s", OnBehalfOf: "u",
		},
		Resource:         &auditv1.Resource{Type: "project_member", Id: id.String(), DisplayName: Plain("Ada"), Version: 1},
		RelatedResources: []*auditv1.Resource{{Type: "project", Id: "p", DisplayName: Plain("Engine")}},
		Outcome:          auditv1.Outcome_OUTCOME_SUCCEEDED, Reason: "IMPORTED", OccurTime: timestamppb.Now(),
		Changes: []*auditv1.Change{{
			Field: "role", OldValue: Plain("VIEWER"),
			NewValue: &auditv1.Personal{Value: &auditv1.Personal_Sealed_{Sealed: &auditv1.Personal_Sealed{KeyId: "k", Ciphertext: []byte{1}}}},
		}},
		Context: &auditv1.RequestContext{
			CorrelationId: "c", TraceId: strings.Repeat("ab", 16), ClientAddress: Plain("192.0.2.1"), UserAgent: "cli",
		},
		Metadata: map[string]string{"source": "import"},
	}
}

func TestCheckPassesACompleteEvent(t *testing.T) {
	t.Parallel()
	if err := Check(valid()); err != nil {
		t.Fatal(err)
	}
}

func TestCheckNamesTheFieldAndTheRule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*auditv1.AuditEvent)
		field  string
		rule   string
	}{
		"no id":                    {func(e *auditv1.AuditEvent) { e.AuditId = "" }, "audit_id", "string.uuid_empty"},
		"a random id":              {func(e *auditv1.AuditEvent) { e.AuditId = uuid.NewString() }, "audit_id", "audit_id.uuidv7"},
		"an id in upper case":      {func(e *auditv1.AuditEvent) { e.AuditId = strings.ToUpper(e.AuditId) }, "audit_id", "audit_id.uuidv7"},
		"a clock two days ahead":   {func(e *auditv1.AuditEvent) { e.OccurTime = timestamppb.New(time.Now().Add(-48 * time.Hour)) }, "audit_id", "audit_id.clock"},
		"no time":                  {func(e *auditv1.AuditEvent) { e.OccurTime = nil }, "occur_time", "required"},
		"another action":           {func(e *auditv1.AuditEvent) { e.Action = "app.project.created" }, "event_type", "event_type.action"},
		"another owner":            {func(e *auditv1.AuditEvent) { e.Owner = "auth" }, "action", "action.owner"},
		"no operation":             {func(e *auditv1.AuditEvent) { e.Operation = 0 }, "operation", "enum.not_in"},
		"no actor":                 {func(e *auditv1.AuditEvent) { e.Actor = nil }, "actor", "required"},
		"a stranger's actor type":  {func(e *auditv1.AuditEvent) { e.Actor.Type = "robot" }, "actor.type", "string.in"},
		"a versioned natural key":  {func(e *auditv1.AuditEvent) { e.Resource.Id = "engine" }, "resource.id", "resource.id.uuid"},
		"a negative version":       {func(e *auditv1.AuditEvent) { e.Resource.Version = -1 }, "resource.version", "int64.gte"},
		"a reason in prose":        {func(e *auditv1.AuditEvent) { e.Reason = "bad luck" }, "reason", "string.pattern"},
		"NUL in a name":            {func(e *auditv1.AuditEvent) { e.Actor.DisplayName = Plain("A\x00") }, "actor.display_name.plain", "text.nul"},
		"broken UTF-8 in a change": {func(e *auditv1.AuditEvent) { e.Changes[0].OldValue = Plain("a\xc5z") }, "changes[0].old_value.plain", "text.utf8"},
		"a password":               {func(e *auditv1.AuditEvent) { e.Metadata["New-Pass_Word"] = "x" }, `metadata["New-Pass_Word"]`, "metadata.refused_key"},
		"33 keys": {func(e *auditv1.AuditEvent) {
			for i := range 33 {
				e.Metadata[fmt.Sprint("k", i)] = "v"
			}
		}, "metadata", "map.max_pairs"},
		"a value of 513": {func(e *auditv1.AuditEvent) { e.Metadata["k"] = strings.Repeat("v", 513) }, `metadata["k"]`, "string.max_len"},
		"8193 bytes": {func(e *auditv1.AuditEvent) {
			for i := range 17 {
				e.Metadata[fmt.Sprint("k", i)] = strings.Repeat("v", 512)
			}
		}, "metadata", "metadata.budget"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := valid()
			c.change(e)
			var invalid *InvalidError
			if err := Check(e); !errors.As(err, &invalid) {
				t.Fatalf("Check = %v, want an *InvalidError", err)
			}
			if !slices.ContainsFunc(invalid.Violations, func(v Violation) bool { return v.Field == c.field && v.Rule == c.rule && v.Text != "" }) {
				t.Fatalf("violations = %+v, want %s at %s", invalid.Violations, c.rule, c.field)
			}
		})
	}
}

func TestCheckRefusesNil(t *testing.T) {
	t.Parallel()
	if Check(nil) == nil {
		t.Fatal("a nil event passed")
	}
}

func TestErrorRepeatsNoValue(t *testing.T) {
	t.Parallel()
	e := valid()
	e.Reason, e.Actor.Id = "canary value", strings.Repeat("canary", 40)
	e.Metadata["api_key"] = "canary"
	if err := Check(e); err == nil || strings.Contains(err.Error(), "canary") {
		t.Fatalf("Check = %v", err)
	}
}

func TestEveryRefusedFragmentIsFoundHoweverWritten(t *testing.T) {
	t.Parallel()
	for _, fragment := range refusedFragments {
		key := "X-" + strings.ToUpper(fragment[:2]) + "_" + fragment[2:]
		if got := refusedFragment(key); got == "" {
			t.Errorf("%q passed", key)
		}
	}
	if got := refusedFragment("correlation"); got != "" {
		t.Errorf("correlation is refused for %q", got)
	}
}

// A string that eachText does not visit could carry what the store cannot hold.
func TestEveryStringOfTheContractIsVisited(t *testing.T) {
	t.Parallel()
	e := valid()
	e.Actor.DisplayName = &auditv1.Personal{Value: &auditv1.Personal_Sealed_{Sealed: &auditv1.Personal_Sealed{KeyId: "k2"}}}
	visited := map[string]bool{}
	eachText(e, func(_ place, s string) { visited[s] = true })

	n := 0
	var walk func(m protoreflect.Message)
	text := func(s string) {
		n++
		if !visited[s] {
			t.Errorf("the text %q is not visited", s)
		}
	}
	walk = func(m protoreflect.Message) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case f.IsMap():
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					text(k.String())
					text(v.String())
					return true
				})
			case f.IsList():
				for i := range v.List().Len() {
					walk(v.List().Get(i).Message())
				}
			case f.Kind() == protoreflect.MessageKind:
				walk(v.Message())
			case f.Kind() == protoreflect.StringKind:
				text(v.String())
			}
			return true
		})
	}
	// Each text gets a value of its own, so that one visit cannot stand for another.
	unique(e.ProtoReflect(), new(int))
	clear(visited)
	eachText(e, func(_ place, s string) { visited[s] = true })
	walk(e.ProtoReflect())
	if n < 25 {
		t.Fatalf("only %d texts were compared", n)
	}
}

// unique gives every string field of m another value.
func unique(m protoreflect.Message, next *int) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				unique(v.List().Get(i).Message(), next)
			}
		case f.Kind() == protoreflect.MessageKind:
			unique(m.Mutable(f).Message(), next)
		case f.Kind() == protoreflect.StringKind:
			*next++
			m.Set(f, protoreflect.ValueOfString(fmt.Sprint("text ", *next)))
		}
		return true
	})
}

func TestUnknownFieldsOfANewerContractPass(t *testing.T) {
	t.Parallel()
	raw, err := proto.Marshal(valid())
	if err != nil {
		t.Fatal(err)
	}
	newer := append(raw, 0xf8, 0x07, 0x01) // field 127, varint 1
	var e auditv1.AuditEvent
	if err := proto.Unmarshal(newer, &e); err != nil {
		t.Fatal(err)
	}
	if err := Check(&e); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkCheck(b *testing.B) {
	e := valid()
	for b.Loop() {
		if err := Check(e); err != nil {
			b.Fatal(err)
		}
	}
}
