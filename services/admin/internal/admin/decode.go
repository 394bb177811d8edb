// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// decode reads an event for serving. Strings that are not valid UTF-8, which a strict decoder refuses, have their bad
// bytes replaced by U+FFFD, so that one such row does not fail a page (BC-19). The payload itself is not changed.
func decode(payload []byte) (*auditv1.AuditEvent, error) {
	event := &auditv1.AuditEvent{}
	strict := proto.Unmarshal(payload, event)
	if strict == nil {
		return event, nil
	}
	repaired, err := repairStrings(event.ProtoReflect().Descriptor(), payload)
	if err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	event = &auditv1.AuditEvent{}
	if err := proto.Unmarshal(repaired, event); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	return event, nil
}

// repairStrings copies the wire form of a message of type desc and makes its strings valid UTF-8, in sub-messages too.
func repairStrings(desc protoreflect.MessageDescriptor, in []byte) ([]byte, error) {
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		number, kind, n := protowire.ConsumeTag(in)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, kind, in[n:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		field := desc.Fields().ByNumber(number)
		value := in[n : n+size]
		in = in[n+size:]
		if field == nil || kind != protowire.BytesType {
			out = protowire.AppendTag(out, number, kind)
			out = append(out, value...)
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		switch field.Kind() {
		case protoreflect.StringKind:
			content = []byte(strings.ToValidUTF8(string(content), "\uFFFD"))
		case protoreflect.MessageKind:
			inner, err := repairStrings(field.Message(), content)
			if err != nil {
				return nil, err
			}
			content = inner
		}
		out = protowire.AppendTag(out, number, kind)
		out = protowire.AppendBytes(out, content)
	}
	return out, nil
}

// fromColumns is what can be said of an event whose payload does not decode.
func fromColumns(row store.AuditLog) *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId:       row.EventID.String(),
		EventType:     row.EventType,
		SchemaVersion: row.SchemaVersion,
		Owner:         row.Owner,
		Action:        row.Action,
		Operation:     auditv1.Operation(auditv1.Operation_value["OPERATION_"+row.Operation]),
		Actor:         &auditv1.Actor{Type: row.ActorType, Id: row.ActorID},
		Resource:      &auditv1.Resource{Type: row.ResourceType, Id: row.ResourceID, Version: row.ResourceVersion},
		Outcome:       auditv1.Outcome(auditv1.Outcome_value["OUTCOME_"+row.Outcome]),
		Reason:        row.Reason,
		OccurTime:     timestamppb.New(row.OccurTime),
		Context:       &auditv1.RequestContext{CorrelationId: row.CorrelationID, TraceId: row.TraceID},
	}
}
