// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// removeDead deletes the names in a group that hold nothing and were silent for a while, look and
// deletion in one step: between two commands an entry could be given to the name, and
// DELCONSUMER drops what a name holds (T16).
const removeDead = `
local removed = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
	local c = {}
	for i = 1, #info, 2 do c[info[i]] = info[i + 1] end
	if c.name ~= ARGV[2] and c.pending == 0 and c.idle >= tonumber(ARGV[3]) then
		redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c.name)
		removed = removed + 1
	end
end
return removed`

// entryID is an entry's id: a pair of numbers, which text does not order.
type entryID struct{ ms, seq uint64 }

func parseID(s string) entryID {
	ms, seq, _ := strings.Cut(s, "-")
	a, _ := strconv.ParseUint(ms, 10, 64)
	b, _ := strconv.ParseUint(seq, 10, 64)
	return entryID{a, b}
}

func (i entryID) String() string {
	return strconv.FormatUint(i.ms, 10) + "-" + strconv.FormatUint(i.seq, 10)
}

func (i entryID) before(j entryID) bool {
	return cmp.Or(cmp.Compare(i.ms, j.ms), cmp.Compare(i.seq, j.seq)) < 0
}

func (i entryID) next() entryID {
	if i.seq == math.MaxUint64 {
		return entryID{i.ms + 1, 0}
	}
	return entryID{i.ms, i.seq + 1}
}

func (i entryID) previous() entryID {
	switch {
	case i.seq > 0:
		return entryID{i.ms, i.seq - 1}
	case i.ms > 0:
		return entryID{i.ms - 1, math.MaxUint64}
	}
	return i
}

// needed returns the lowest id that the group still needs: its lowest pending one, or what follows
// its last delivered one. The group was read before the pending list, so everything below was acknowledged.
func (s *Source) needed(ctx context.Context, g redis.XInfoGroup) (entryID, error) {
	need := parseID(g.LastDeliveredID).next()
	pending, err := s.commands.XPending(ctx, s.o.Stream, g.Name).Result()
	if err != nil {
		return need, wrap("xpending", err)
	}
	if pending.Count > 0 {
		if low := parseID(pending.Lower); low.before(need) {
			need = low
		}
	}
	return need, nil
}

func (s *Source) groups(ctx context.Context) ([]redis.XInfoGroup, redis.XInfoGroup, error) {
	groups, err := s.commands.XInfoGroups(ctx, s.o.Stream).Result()
	if err != nil {
		return nil, redis.XInfoGroup{}, wrap("xinfo groups", err)
	}
	for _, g := range groups {
		if g.Name == s.o.Group {
			return groups, g, nil
		}
	}
	return nil, redis.XInfoGroup{}, fmt.Errorf("xinfo groups: %w", inbox.ErrNoGroup)
}

// Tidy implements inbox.Source. It trims below the oldest entry that any group still needs, and never
// by length (BC-41, BC-42).
func (s *Source) Tidy(ctx context.Context) (inbox.Tidied, error) {
	var t inbox.Tidied
	groups, _, err := s.groups(ctx)
	if err != nil {
		return t, err
	}
	lowest := entryID{math.MaxUint64, math.MaxUint64}
	for _, g := range groups {
		need, err := s.needed(ctx, g)
		if err != nil {
			return t, err
		}
		if need.before(lowest) {
			lowest = need
		}
		stuck, err := s.stuck(ctx, need)
		if err != nil {
			return t, err
		}
		if stuck {
			t.Stuck = append(t.Stuck, g.Name)
		}
	}
	if t.Trimmed, err = s.commands.XTrimMinID(ctx, s.o.Stream, lowest.String()).Result(); err != nil {
		return t, wrap("xtrim", err)
	}
	t.ConsumersRemoved, err = redis.NewScript(removeDead).Run(ctx, s.commands, []string{s.o.Stream},
		s.o.Group, s.o.Consumer, s.o.DeadAfter.Milliseconds()).Int64()
	if err != nil {
		return t, wrap("remove dead consumers", err)
	}
	return t, nil
}

// stuck says that the oldest entry from need on was added too long ago, by its id.
func (s *Source) stuck(ctx context.Context, need entryID) (bool, error) {
	age, err := s.ageFrom(ctx, need)
	return age > s.o.StuckAfter, err
}

// ageFrom returns how long ago the first entry from an id on was added; 0 if there is none.
func (s *Source) ageFrom(ctx context.Context, from entryID) (time.Duration, error) {
	first, err := s.commands.XRangeN(ctx, s.o.Stream, from.String(), "+", 1).Result()
	if err != nil {
		return 0, wrap("xrange", err)
	}
	if len(first) == 0 {
		return 0, nil
	}
	added := time.UnixMilli(int64(parseID(first[0].ID).ms))
	return max(s.o.Now().Sub(added), 0), nil
}

// Position implements inbox.Source.
func (s *Source) Position(ctx context.Context) (inbox.Position, error) {
	_, g, err := s.groups(ctx)
	if err != nil {
		return inbox.Position{}, err
	}
	need, err := s.needed(ctx, g)
	if err != nil {
		return inbox.Position{}, err
	}
	stream, err := s.commands.XInfoStream(ctx, s.o.Stream).Result()
	if err != nil {
		return inbox.Position{}, wrap("xinfo stream", err)
	}
	unread, err := s.ageFrom(ctx, parseID(g.LastDeliveredID).next())
	if err != nil {
		return inbox.Position{}, err
	}
	return inbox.Position{
		Through: need.previous().String(), Pending: g.Pending, Consumers: g.Consumers, OldestUnread: unread, Lag: lag(stream, g),
	}, nil
}

// lag counts what follows the group's last delivered entry. The server's own lag counts entries that
// were trimmed unread, and is absent after deletions (BC-55); two counts bound it. What the stream
// holds is too many only where read entries are still kept, and what was ever added, less what
// was read, only where unread ones were trimmed. Trimming takes the oldest, so never both at once.
func lag(stream *redis.XInfoStream, g redis.XInfoGroup) int64 {
	n := stream.Length
	if !parseID(g.LastDeliveredID).before(parseID(stream.LastGeneratedID)) {
		return 0
	}
	if g.EntriesRead > 0 || g.LastDeliveredID == "0-0" {
		n = min(n, max(stream.EntriesAdded-g.EntriesRead, 0))
	}
	return n
}
