// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"
)

// grammar is everything that can be typed: the flags that every command has, and the commands.
type grammar struct {
	globals

	Login   loginCmd   `cmd:"" help:"Log in and keep the tokens for the commands after it."`
	Logout  logoutCmd  `cmd:"" help:"End the session and forget its tokens."`
	Whoami  whoamiCmd  `cmd:"" help:"Show who is logged in, where, and with which roles."`
	User    userCmd    `cmd:"" help:"Manage accounts and their roles."`
	Policy  policyCmd  `cmd:"" help:"Show and change the login policy."`
	Session sessionCmd `cmd:"" help:"Show and revoke sessions."`
	Project projectCmd `cmd:"" help:"Manage projects and their members."`
	Audit   auditCmd   `cmd:"" help:"Read the audit log."`
	Alerts  alertsCmd  `cmd:"" help:"Read the security alerts."`
	Outbox  outboxCmd  `cmd:"" help:"See and repair the delivery of events at their owner."`
	Inbox   inboxCmd   `cmd:"" help:"See and repair what Admin does with events."`
	Poison  poisonCmd  `cmd:"" help:"Decide on stream entries that could not be taken over."`
	Trace   traceCmd   `cmd:"" help:"Follow one event through all services and say where it is."`
	Version versionCmd `cmd:"" help:"Print the version of this program."`
}

// globals are the flags that every command has.
type globals struct {
	Output        string        `short:"o" enum:"table,json" default:"table" help:"table for people; json for scripts: one document, or one a line for lists."`
	Auth          string        `placeholder:"HOST:PORT" group:"connection" help:"Address of Auth ($$COUNTERFOIL_AUTH; else as at login; else ${auth_address})."`
	App           string        `placeholder:"HOST:PORT" group:"connection" help:"Address of App ($$COUNTERFOIL_APP; else as at login; else ${app_address})."`
	Admin         string        `placeholder:"HOST:PORT" group:"connection" help:"Address of Admin ($$COUNTERFOIL_ADMIN; else as at login; else ${admin_address})."`
	TLS           *bool         `name:"tls" negatable:"" group:"connection" help:"Speak TLS ($$COUNTERFOIL_TLS=true; else as at login; else no)."`
	CAFile        string        `name:"ca-file" placeholder:"FILE" group:"connection" help:"Certificates to trust, in PEM, instead of the system's; implies --tls ($$COUNTERFOIL_CA_FILE; else as at login)."`
	Insecure      bool          `group:"connection" help:"Send passwords and tokens in the clear to an address that is not loopback."`
	Timeout       time.Duration `default:"30s" group:"connection" help:"How long one call may take; exports have no limit."`
	Config        string        `placeholder:"FILE" group:"connection" help:"File with the tokens ($$COUNTERFOIL_CONFIG; else counterfoil/login.json in the user's configuration folder)."`
	CorrelationID string        `placeholder:"ID" group:"connection" help:"Groups the calls of this command in the audit log ($$COUNTERFOIL_CORRELATION_ID; else a new one)."`
	Yes           bool          `short:"y" help:"Do not ask for confirmation."`
}

// app is what a command works with.
type app struct {
	globals
	in     io.Reader
	out    *output
	stderr io.Writer
	getenv func(string) string
	now    func() time.Time
	newID  func() string

	tokens  sync.Mutex // taken to look at, or replace, the login's tokens: trace asks three services at once
	login   *loginFile
	remotes map[string]*remote
}

const description = `Talks to Auth, App and Admin over gRPC.

Exit codes:

    0  done
    1  failed
    2  wrong usage, or a value that was refused
    3  not found
    4  not logged in, or not allowed
    5  conflict: exists already, changed meanwhile, or not possible in this state
    6  a service cannot be reached or is too busy: try again

Examples:

    counterfoil login ada@example.com
    counterfoil audit list --since 1h --outcome denied
    counterfoil outbox status
    counterfoil trace 01980000-0000-7000-8000-000000000001
`

// run does what args ask and returns the exit code. It may be called several times in one process, also at once.
// Cancelling ctx gives up the call under way; whether it took effect is then unknown.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	var g grammar
	helped := false
	parser, err := kong.New(&g,
		kong.Name("counterfoil"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 110}),
		kong.ExplicitGroups([]kong.Group{{Key: "connection", Title: "Connection:"}}),
		kong.Vars{
			"auth_address": defaultAddress(serviceAuth), "app_address": defaultAddress(serviceApp),
			"admin_address": defaultAddress(serviceAdmin),
		},
	)
	if err != nil {
		tell(stderr, "counterfoil: build the command line: "+err.Error()+"\n")
		return exitFailure
	}
	bare := len(args) == 0
	if bare {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	switch {
	case helped && bare:
		return exitUsage
	case helped:
		return exitOK
	}
	a := &app{
		globals: g.globals, in: stdin, stderr: stderr, getenv: getenv, now: time.Now, newID: uuid.NewString,
		out:     &output{w: stdout, json: g.Output == "json"},
		remotes: make(map[string]*remote),
	}
	defer a.close()
	if err == nil {
		parsed.BindTo(ctx, (*context.Context)(nil))
		err = parsed.Run(a)
	} else {
		err = badCommand(err)
	}
	return a.finish(err)
}

// badCommand is what kong found wrong, with the place to read on.
func badCommand(err error) error {
	command := "counterfoil"
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil {
		if selected := parse.Context.Selected(); selected != nil {
			command = selected.FullPath()
		}
	}
	return &failure{code: exitUsage, text: err.Error(), hint: "see " + command + " --help"}
}

// finish reports err and returns its exit code.
func (a *app) finish(err error) int {
	if err == nil {
		return exitOK
	}
	return a.report(err).ExitCode
}

// report tells what went wrong and what to do about it, for people or for scripts.
func (a *app) report(err error) report {
	r := a.explain(err)
	if a.out.json {
		r.writeJSON(a.stderr)
	} else {
		r.writeText(a.stderr)
	}
	return r
}

// note tells a person something beside the result; scripts that read the result do not see it.
func (a *app) note(format string, args ...any) {
	tell(a.stderr, clean(fmt.Sprintf(format, args...))+"\n")
}

// tell writes to where errors go.
func tell(w io.Writer, text string) {
	io.WriteString(w, text) //nolint:errcheck // there is nowhere left to report it
}
