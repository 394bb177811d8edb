// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/term"
	"google.golang.org/grpc"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

type auditExportCmd struct {
	filterFlags
	Format string `enum:"ndjson,csv" default:"ndjson" help:"ndjson (one record a line) or csv (for spreadsheets)."`
	File   string `placeholder:"FILE" help:"Where to write; the standard output if left out. An existing file is replaced when the export is complete."`
}

// Help implements kong.HelpProvider.
func (auditExportCmd) Help() string {
	return "The export is itself recorded in the audit log.\n\n" + filterHelp + examples(
		"counterfoil audit export --since 2026-11-01 --until 2026-12-01 --format csv --file november.csv",
		"counterfoil audit export --owner auth | jq -r .event.action | sort | uniq -c")
}

// Run writes the export.
func (c *auditExportCmd) Run(ctx context.Context, a *app) error {
	filter, err := c.build(ctx, a)
	if err != nil {
		return err
	}
	format := adminv1.ExportFormat_EXPORT_FORMAT_NDJSON
	if c.Format == "csv" {
		format = adminv1.ExportFormat_EXPORT_FORMAT_CSV
	}
	request := &adminv1.ExportAuditLogsRequest{Filter: filter, Format: format}
	if c.File == "" {
		// The records hold text that strangers wrote: as it is, it belongs into a file and not on a terminal.
		if file, ok := a.out.w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			return usage("an export is for files: give --file FILE, or pipe it on; counterfoil audit list is for reading")
		}
		count, err := a.export(ctx, request, a.out.w)
		if err == nil {
			a.note("exported %d records", count)
		}
		return err
	}
	var count int64
	if err := replaceFile(c.File, func(w io.Writer) error {
		count, err = a.export(ctx, request, w)
		return err
	}); err != nil {
		return err
	}
	if a.out.json {
		return a.out.value(map[string]any{"file": c.File, "recordCount": count})
	}
	return a.out.fields([2]string{"exported records", fmt.Sprint(count)}, [2]string{"file", c.File})
}

// export writes all chunks and returns how many records they hold.
func (a *app) export(ctx context.Context, request *adminv1.ExportAuditLogsRequest, w io.Writer) (int64, error) {
	count, err := a.exportOnce(ctx, request, w)
	if usedUp(err) { // refused before the first byte
		login, loadErr := a.saved()
		if loadErr != nil || login == nil {
			return 0, err
		}
		if _, refreshErr := a.token(ctx, login.AccessToken); refreshErr != nil {
			return 0, refreshErr
		}
		count, err = a.exportOnce(ctx, request, w)
	}
	return count, err
}

func (a *app) exportOnce(ctx context.Context, request *adminv1.ExportAuditLogsRequest, w io.Writer) (int64, error) {
	var stream grpc.ServerStreamingClient[adminv1.ExportAuditLogsResponse]
	stream, err := a.auditLogs().ExportAuditLogs(ctx, request)
	if err != nil {
		return 0, err
	}
	var count int64
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return 0, a.conn(serviceAdmin).wrap(adminv1.AuditLogService_ExportAuditLogs_FullMethodName, request, err)
		}
		if _, err := w.Write(chunk.GetContent()); err != nil {
			return 0, fmt.Errorf("write export: %w", err)
		}
		count = chunk.GetRecordCount()
	}
}

// replaceFile gives write a new file that takes the place of name once it is complete: what is there under that name is
// never half an export.
func replaceFile(name string, write func(io.Writer) error) error {
	file, err := os.CreateTemp(filepath.Dir(name), ".export-*") // mode 0600: the records are for auditors
	if err != nil {
		return fmt.Errorf("write export: %w", err)
	}
	err = write(file)
	if syncErr := errors.Join(file.Sync(), file.Close()); err == nil && syncErr != nil {
		err = fmt.Errorf("write export: %w", syncErr)
	}
	if err == nil {
		if err = os.Rename(file.Name(), name); err != nil {
			err = fmt.Errorf("write export: %w", err)
		}
	}
	if err != nil {
		os.Remove(file.Name()) //nolint:errcheck // the first error is the one to tell
	}
	return err
}
