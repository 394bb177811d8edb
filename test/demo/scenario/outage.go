// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// imported is the number of members that are added in one transaction while Admin and Redis are away.
const imported = 500

// patience bounds the wait until everything is recorded. A killed Admin leaves leases of half a minute behind.
const patience = 2 * time.Minute

// Phase is a stretch of the outage.
type Phase struct {
	// Name says what is away.
	Name string
	// Begin and End are when it began and ended.
	Begin, End time.Time
	// AdminAway and RedisAway say what must not answer in it.
	AdminAway, RedisAway bool
}

// Happening is something that was done to the system from outside.
type Happening struct {
	At   time.Time
	What string
}

// Outage is what was seen while Admin and Redis were killed.
type Outage struct {
	Phases     []Phase
	Happenings []Happening
	Samples    []Sample
}

// outage kills Admin, then Redis, and brings them back, while people work.
func (d *day) outage() (out Outage, err error) {
	d.chapter("Admin and Redis are killed, and work goes on")
	people := d.startTraffic(d.ada, d.grace, d.barbara, d.edsger)
	eyes := d.system.startWatch(d.ctx)
	defer func() {
		people.stop()
		samples, watchErr := eyes.stop()
		out.Samples = samples
		err = errors.Join(err, watchErr, d.Err())
	}()

	kill := func(part string) error {
		what, err := d.system.Power.Kill(d.ctx, part)
		if err != nil {
			return fmt.Errorf("kill %s: %w", part, err)
		}
		d.happened(&out, "SIGKILL to "+what)
		return nil
	}
	start := func(part string) error {
		begin := time.Now()
		if err := d.system.Power.Start(d.ctx, part); err != nil {
			return fmt.Errorf("start %s: %w", part, err)
		}
		d.happened(&out, fmt.Sprintf("%s is started again, and answers after %d ms", strings.ToUpper(part[:1])+part[1:], time.Since(begin).Milliseconds()))
		return nil
	}
	guess := func() error { // somebody guesses while nobody watches
		d.tryLogIn(d.grace, "password", refused(codes.Unauthenticated, "auth.login.failed"))
		return nil
	}
	massImport := func() error {
		begin := time.Now()
		d.importMembers(imported)
		d.happened(&out, fmt.Sprintf("%d members are imported in one transaction, in %d ms", imported, time.Since(begin).Milliseconds()))
		return nil
	}
	for _, stage := range []struct {
		Phase
		first, half func() error
		length      time.Duration
	}{
		{Phase{Name: "all is well"}, nil, nil, 4 * time.Second},
		{Phase{Name: "Admin is away", AdminAway: true}, func() error { return kill(Admin) }, nil, 3 * time.Second},
		{
			Phase{Name: "Admin and Redis are away", AdminAway: true, RedisAway: true},
			func() error { return kill(Redis) },
			func() error { return errors.Join(massImport(), guess()) }, 6 * time.Second,
		},
		{Phase{Name: "Redis is back, Admin is not", AdminAway: true}, func() error { return start(Redis) }, nil, 3 * time.Second},
		{Phase{Name: "both are back"}, func() error { return start(Admin) }, nil, 4 * time.Second},
	} {
		if err := d.stage(&out, stage.Phase, stage.first, stage.half, stage.length); err != nil {
			return out, err
		}
	}
	people.stop()
	out.Phases[len(out.Phases)-1].End = time.Now()
	d.log("   waiting until everything is recorded (at most %v)", patience)
	_, err = d.system.Settle(d.ctx)
	return out, err
}

// stage does what begins a phase, waits half of its length, does what belongs into its middle, and waits for the rest.
func (d *day) stage(out *Outage, phase Phase, first, half func() error, length time.Duration) error {
	if first != nil {
		if err := first(); err != nil {
			return err
		}
	}
	phase.Begin = time.Now()
	if err := d.pass(length / 2); err != nil {
		return err
	}
	if half != nil {
		if err := half(); err != nil {
			return err
		}
	}
	if err := d.pass(length / 2); err != nil {
		return err
	}
	phase.End = time.Now()
	out.Phases = append(out.Phases, phase)
	return nil
}

// pass lets time go by while others work.
func (d *day) pass(length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-d.ctx.Done():
		return fmt.Errorf("outage: %w", d.ctx.Err())
	case <-timer.C:
		return d.Err()
	}
}

func (d *day) happened(out *Outage, what string) {
	out.Happenings = append(out.Happenings, Happening{time.Now(), what})
	d.log("   %s", what)
}

// Settle waits until nothing is on its way, at most two minutes. An error says what still is.
func (s System) Settle(ctx context.Context) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last Sample
	for {
		sample, err := s.Look(ctx)
		switch {
		case err == nil && sample.Quiet():
			return sample, nil
		case err == nil:
			last = sample
		case ctx.Err() == nil:
			return sample, err
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("wait for the record: %w: of %d events %d wait in an outbox, %d are in the stream, %d in Admin's inbox, %d are recorded",
				ctx.Err(), last.Appended, last.Waiting, last.Flying, last.Staged, last.Recorded)
		case <-tick.C:
		}
	}
}
