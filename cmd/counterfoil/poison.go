// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"strconv"
	"strings"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

type poisonCmd struct {
	List    poisonListCmd    `cmd:"" help:"List what could not be taken over, newest first."`
	Get     poisonGetCmd     `cmd:"" help:"Show one with the raw fields of its entry."`
	Replay  poisonReplayCmd  `cmd:"" help:"Check PARKED poison again and take it over, after an upgrade."`
	Discard poisonDiscardCmd `cmd:"" help:"Close poison without taking it over; the evidence is kept."`
}

func (a *app) poison() adminv1.PoisonServiceClient {
	return adminv1.NewPoisonServiceClient(a.conn(serviceAdmin))
}

func poisonID(p *adminv1.Poison) string { return strings.TrimPrefix(p.GetName(), "poison/") }

// poisonView is a list of poison. The code of the reason is compared here: the API does not select by it.
func poisonView(a *app, kind, state int32, code string) list[*adminv1.Poison] {
	return list[*adminv1.Poison]{
		what:   "poison",
		header: []string{"FIRST SEEN (UTC)", "KIND", "REASON", "STATE", "SEEN", "STREAM", "CLAIMS TO BE", "POISON"},
		row: func(p *adminv1.Poison) []string {
			return []string{
				when(p.GetFirstSeenTime()), word(p.GetKind(), "POISON_KIND_"), p.GetReason(), word(p.GetState(), "POISON_STATE_"),
				count(p.GetSeenCount()), p.GetStream(), strings.TrimSpace(p.GetClaimedType() + " " + p.GetEventId()), poisonID(p),
			}
		},
		get: func(ctx context.Context, size int32, token string) ([]*adminv1.Poison, string, error) {
			r, err := a.poison().ListPoison(ctx, &adminv1.ListPoisonRequest{
				PageSize: size, PageToken: token, Kind: adminv1.PoisonKind(kind), State: adminv1.PoisonState(state),
			})
			items := r.GetPoison()
			if code != "" {
				items = nil
				for _, p := range r.GetPoison() {
					if p.GetReason() == code {
						items = append(items, p)
					}
				}
			}
			return items, r.GetNextPageToken(), err
		},
	}
}

// poisonFilter selects poison.
type poisonFilter struct {
	Kind string `placeholder:"KIND" help:"Only forged, parked or conflict."`
	Code string `placeholder:"CODE" help:"Only with this reason."`
}

func (f poisonFilter) kind() (int32, error) {
	if f.Kind == "" {
		return 0, nil
	}
	return enum("--kind", f.Kind, "POISON_KIND_", adminv1.PoisonKind_value)
}

type poisonListCmd struct {
	poisonFilter
	State string `default:"open" placeholder:"STATE" help:"Only open, resolved or discarded; any for all."`
	pageFlags
}

// Help implements kong.HelpProvider.
func (poisonListCmd) Help() string {
	return examples("counterfoil poison list", "counterfoil poison list --kind forged --state any -o json")
}

// Run lists the poison.
func (c *poisonListCmd) Run(ctx context.Context, a *app) error {
	kind, err := c.kind()
	if err != nil {
		return err
	}
	state := int32(0)
	if c.State != "any" {
		if state, err = enum("--state", c.State, "POISON_STATE_", adminv1.PoisonState_value); err != nil {
			return err
		}
	}
	return poisonView(a, kind, state, c.Code).show(ctx, a, c.pageFlags)
}

func (a *app) onePoison(ctx context.Context, id string) (*adminv1.Poison, error) {
	r, err := a.poison().GetPoison(ctx, &adminv1.GetPoisonRequest{Name: "poison/" + id})
	return r.GetPoison(), err
}

type poisonGetCmd struct {
	Poison string `arg:"" help:"Id, or poison/ID."`
}

// Help implements kong.HelpProvider.
func (poisonGetCmd) Help() string {
	return examples("counterfoil poison get 01980000-0000-7000-8000-000000000001",
		"counterfoil poison get poison/01980000-0000-7000-8000-000000000001 -o json | jq -r .rawFields | base64 -d")
}

// Run shows the poison.
func (c *poisonGetCmd) Run(ctx context.Context, a *app) error {
	id, err := lastID("poison", c.Poison)
	if err != nil {
		return err
	}
	p, err := a.onePoison(ctx, id)
	if err != nil {
		return err
	}
	fields := [][2]string{
		{"poison", p.GetName()},
		{"kind", word(p.GetKind(), "POISON_KIND_")},
		{"reason", p.GetReason()},
		{"state", word(p.GetState(), "POISON_STATE_")},
		{"stream", p.GetStream()},
		{"claims to be", strings.TrimSpace(p.GetClaimedType() + " " + p.GetEventId())},
		{"ledger", position(p.GetOwner(), p.GetLedgerId(), p.GetLedgerNumber())},
		{"first seen", strings.TrimSpace(whenUTC(p.GetFirstSeenTime()) + " " + p.GetFirstEntryId())},
		{"last seen", strings.TrimSpace(whenUTC(p.GetLastSeenTime()) + " " + p.GetLastEntryId())},
		{"times", count(p.GetSeenCount())},
		{"decided by", p.GetDecidedBy()},
		{"decided", whenUTC(p.GetDecideTime())},
		{"because", p.GetDecisionReason()},
		{"size", strconv.FormatInt(p.GetRawSize(), 10) + " bytes"},
	}
	if !a.out.json {
		if err := a.out.fields(fields...); err != nil {
			return err
		}
		return a.out.text(hex.Dump(p.GetRawFields()))
	}
	return a.out.document(p)
}

// poisonAction is what replay and discard have in common.
type poisonAction struct {
	chosenFlags
	reasonFlags
}

type poisonVerb struct {
	verb, past string
	kind       int32
	code       string
	final      bool
	act        func(ctx context.Context, names []string) ([]string, error)
}

func (c *poisonAction) run(ctx context.Context, a *app, v poisonVerb) error {
	open := adminv1.PoisonState_POISON_STATE_OPEN
	return operation[*adminv1.Poison]{
		chosenFlags: c.chosenFlags, reasonFlags: c.reasonFlags, verb: v.verb, what: "poison", final: v.final,
		view: poisonView(a, v.kind, int32(open), v.code), id: poisonID, get: a.onePoison,
		eligible: func(p *adminv1.Poison) bool {
			return p.GetState() == open && (v.verb == "discard" || p.GetKind() == adminv1.PoisonKind_POISON_KIND_PARKED)
		},
		act: func(ctx context.Context, ids []string) ([]string, error) { return v.act(ctx, prefixed("poison/", ids)) },
		show: func(done, asked []string) error {
			if a.out.json {
				return a.out.value(map[string]any{v.past + "Names": some(done), v.past + "Count": len(done), "leftCount": len(asked) - len(done)})
			}
			return a.out.fields([2]string{v.past + " poison", strconv.Itoa(len(done))})
		},
	}.run(ctx, a)
}

type poisonReplayCmd struct {
	poisonAction
	Code string `placeholder:"CODE" help:"With --all: only with this reason."`
}

// Help implements kong.HelpProvider.
func (poisonReplayCmd) Help() string {
	return "What is still not understood stays as it is. Each one taken over is recorded in the audit log with the reason.\n\n" + examples(
		`counterfoil poison replay 01980000-0000-7000-8000-000000000001 --reason "Admin knows the type since 1.4"`,
		`counterfoil poison replay --all --code type.unknown --dry-run`)
}

// Run replays parked poison.
func (c *poisonReplayCmd) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, poisonVerb{
		verb: "replay", past: "resolved", kind: int32(adminv1.PoisonKind_POISON_KIND_PARKED), code: c.Code,
		act: func(ctx context.Context, names []string) ([]string, error) {
			r, err := a.poison().ReplayPoison(ctx, &adminv1.ReplayPoisonRequest{Names: names, Reason: c.Reason})
			return r.GetResolvedNames(), err
		},
	})
}

type poisonDiscardCmd struct {
	poisonAction
	poisonFilter
}

// Help implements kong.HelpProvider.
func (poisonDiscardCmd) Help() string {
	return `It cannot be taken back, so it asks first; without a terminal it needs --yes. --all needs --kind. Each one is recorded in
the audit log with the reason.

` + examples(
		`counterfoil poison discard 01980000-0000-7000-8000-000000000001 --reason "test of the firewall" --yes`,
		`counterfoil poison discard --all --kind forged --dry-run`)
}

// Run discards poison.
func (c *poisonDiscardCmd) Run(ctx context.Context, a *app) error {
	kind, err := c.kind()
	if err != nil {
		return err
	}
	if c.All && kind == 0 {
		return usage("--all needs --kind: parked events are lost to the audit log once they are discarded")
	}
	return c.run(ctx, a, poisonVerb{
		verb: "discard", past: "discarded", kind: kind, code: c.Code, final: true,
		act: func(ctx context.Context, names []string) ([]string, error) {
			r, err := a.poison().DiscardPoison(ctx, &adminv1.DiscardPoisonRequest{Names: names, Reason: c.Reason})
			return r.GetDiscardedNames(), err
		},
	})
}
