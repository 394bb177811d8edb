// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
)

const poisonPrefix = "poison/"

type poisonServer struct {
	adminv1.UnimplementedPoisonServiceServer
	service *admin.Service
	tokens  *pagetoken.Codec
}

// poisonCursor is the last poison of a page.
type poisonCursor struct {
	FirstSeenAt time.Time `json:"t"`
	ID          uuid.UUID `json:"i"`
}

// ListPoison serves a page of poison.
func (s *poisonServer) ListPoison(ctx context.Context, r *adminv1.ListPoisonRequest) (*adminv1.ListPoisonResponse, error) {
	size, err := pagetoken.PageSize(r.GetPageSize(), admin.DefaultPageSize, admin.MaxPageSize)
	if err != nil {
		return nil, err
	}
	filter := inbox.PoisonFilter{
		Kind:  inbox.PoisonKind(shortName(r.GetKind().String(), "POISON_KIND_")),
		State: inbox.PoisonState(shortName(r.GetState().String(), "POISON_STATE_")),
	}
	question := pagetoken.Binding{
		Method: adminv1.PoisonService_ListPoison_FullMethodName, Filter: fmt.Sprintf("%s %s", filter.Kind, filter.State),
	}
	var cursor poisonCursor
	if _, err := s.tokens.Open(question, r.GetPageToken(), &cursor); err != nil {
		return nil, err
	}
	found, err := s.service.ListPoison(ctx, filter, inbox.PoisonCursor(cursor), size)
	if err != nil {
		return nil, err
	}
	page := &adminv1.ListPoisonResponse{Poison: make([]*adminv1.Poison, len(found))}
	for i, p := range found {
		page.Poison[i] = poison(p)
	}
	if len(found) == size {
		last := found[size-1]
		page.NextPageToken, err = s.tokens.Seal(question, poisonCursor{FirstSeenAt: last.FirstSeenAt, ID: last.ID})
	}
	return page, err
}

// GetPoison serves one, with its raw fields.
func (s *poisonServer) GetPoison(ctx context.Context, r *adminv1.GetPoisonRequest) (*adminv1.GetPoisonResponse, error) {
	found, err := s.service.Poison(ctx, lastID(r.GetName()))
	if err != nil {
		return nil, err
	}
	answer := poison(found)
	answer.RawFields = found.RawFields
	return &adminv1.GetPoisonResponse{Poison: answer}, nil
}

// ReplayPoison takes over what is understood now.
func (s *poisonServer) ReplayPoison(ctx context.Context, r *adminv1.ReplayPoisonRequest) (*adminv1.ReplayPoisonResponse, error) {
	done, err := s.service.ReplayPoison(ctx, caller(ctx), lastIDs(r.GetNames()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &adminv1.ReplayPoisonResponse{
		ResolvedNames: namesOf(poisonPrefix, done.Changed), Refusals: refusals(poisonPrefix, done.Refused),
	}, nil
}

// DiscardPoison closes poison without taking it over.
func (s *poisonServer) DiscardPoison(ctx context.Context, r *adminv1.DiscardPoisonRequest) (*adminv1.DiscardPoisonResponse, error) {
	done, err := s.service.DiscardPoison(ctx, caller(ctx), lastIDs(r.GetNames()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &adminv1.DiscardPoisonResponse{
		DiscardedNames: namesOf(poisonPrefix, done.Changed), Refusals: refusals(poisonPrefix, done.Refused),
	}, nil
}

// poison leaves the raw fields out. What an entry claims of itself is untrusted text.
func poison(p inbox.Poison) *adminv1.Poison {
	answer := &adminv1.Poison{
		Name:           poisonPrefix + p.ID.String(),
		Stream:         p.Stream,
		Owner:          p.Owner,
		Kind:           adminv1.PoisonKind(adminv1.PoisonKind_value["POISON_KIND_"+string(p.Kind)]),
		Reason:         p.Reason,
		State:          adminv1.PoisonState(adminv1.PoisonState_value["POISON_STATE_"+string(p.State)]),
		ClaimedType:    strings.ToValidUTF8(p.ClaimedType, "\uFFFD"),
		LedgerNumber:   p.LedgerSeq,
		FirstEntryId:   p.FirstEntryID,
		LastEntryId:    p.LastEntryID,
		SeenCount:      p.SeenCount,
		FirstSeenTime:  timestamp(p.FirstSeenAt),
		LastSeenTime:   timestamp(p.LastSeenAt),
		RawSize:        p.RawSize,
		DecidedBy:      p.DecidedBy,
		DecideTime:     timestamp(p.DecidedAt),
		DecisionReason: p.Decision,
	}
	if p.EventID != uuid.Nil {
		answer.EventId = p.EventID.String()
	}
	if p.LedgerID != uuid.Nil {
		answer.LedgerId = p.LedgerID.String()
	}
	return answer
}

// shortName takes the prefix off an enum's value; UNSPECIFIED is empty, which is any.
func shortName(value, prefix string) string {
	if short := strings.TrimPrefix(value, prefix); short != "UNSPECIFIED" {
		return short
	}
	return ""
}
