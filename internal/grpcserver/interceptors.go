// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

const correlationHeader = "x-correlation-id"

// errDraining is the cause with which streams are cancelled when the server stops.
var errDraining = errors.New("server is stopping")

// infrastructure says that a method belongs to gRPC itself (health, reflection), which this package serves.
func infrastructure(fullMethod string) bool { return strings.HasPrefix(fullMethod, "/grpc.") }

type drainKey struct{}

// Draining returns a channel that is closed when the server begins to stop. A handler that streams without end selects
// on it and returns; it is nil, and so never ready, outside a call.
func Draining(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(drainKey{}).(chan struct{})
	return c
}

func (s *Server) unaryInfo(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, id := s.withInfo(ctx, info.FullMethod)
	_ = grpc.SetHeader(ctx, metadata.Pairs(correlationHeader, id)) // fails only if the call is over
	return next(ctx, req)
}

func (s *Server) streamInfo(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, id := s.withInfo(ss.Context(), info.FullMethod)
	_ = ss.SetHeader(metadata.Pairs(correlationHeader, id))
	return next(srv, &stream{ServerStream: ss, ctx: ctx})
}

func (s *Server) unaryErrors(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	if err != nil {
		return nil, s.answer(ctx, err)
	}
	return resp, nil
}

func (s *Server) streamErrors(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := next(srv, ss); err != nil {
		return s.answer(ss.Context(), err)
	}
	return nil
}

// answer maps err to what the caller sees and logs what the caller must not see: the one place that does either.
func (s *Server) answer(ctx context.Context, err error) error {
	info := RequestInfo(ctx)
	if _, ok := status.FromError(err); ok && infrastructure(info.Method) {
		return err // gRPC's own services answer in statuses
	}
	err = s.cfg.Translate(err)
	answer := apperr.ToStatus(err, s.cfg.Domain)
	level := slog.LevelDebug
	switch answer.Code() {
	case codes.Internal, codes.Unknown:
		level = slog.LevelError
	case codes.Unavailable:
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("method", info.Method), slog.String("code", answer.Code().String()),
		slog.String("correlation_id", info.CorrelationID), slog.String("error", err.Error()),
	}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String("stack", p.stack))
	}
	s.cfg.Logger.LogAttrs(ctx, level, "call failed", attrs...)
	return answer.Err()
}

// panicError is a handler that panicked.
type panicError struct {
	value any
	stack string
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func recovered(err *error) {
	if value := recover(); value != nil {
		*err = &panicError{value: value, stack: string(debug.Stack())}
	}
}

func (s *Server) unaryRecover(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer recovered(&err)
	return next(ctx, req)
}

func (s *Server) streamRecover(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer recovered(&err)
	return next(srv, ss)
}

func (s *Server) unaryDeadline(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Deadline)
		defer cancel()
	}
	return next(ctx, req)
}

// streamDeadline also ends the stream when the server stops, as UNAVAILABLE rather than as the caller's cancellation.
func (s *Server) streamDeadline(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.streams, func() { cancel(errDraining) })()
	if _, has := ctx.Deadline(); !has && s.cfg.StreamDeadline > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.cfg.StreamDeadline)
		defer stop()
	}
	err := next(srv, &stream{ServerStream: ss, ctx: ctx})
	if err != nil && errors.Is(context.Cause(ctx), errDraining) {
		return apperr.Unavailable("SERVER_STOPPING", "the server is stopping; call again", s.cfg.Grace/2).WithCause(err)
	}
	return err
}

func (s *Server) unaryAuthenticate(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := s.authenticate(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (s *Server) streamAuthenticate(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := s.authenticate(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, &stream{ServerStream: ss, ctx: ctx})
}

func (s *Server) authenticate(ctx context.Context, fullMethod string) (context.Context, error) {
	if infrastructure(fullMethod) {
		return ctx, nil
	}
	ctx, err := s.cfg.Authenticate(ctx, fullMethod)
	if err != nil || s.cfg.Enrich == nil {
		return ctx, err
	}
	return s.cfg.Enrich(ctx), nil
}

func (s *Server) unaryValidate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := s.validate(req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// streamValidate checks each message that the handler receives.
func (s *Server) streamValidate(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, &stream{ServerStream: ss, ctx: ss.Context(), check: s.validate})
}

func (s *Server) validate(req any) error {
	message, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	return apperr.FromValidation(s.validator.Validate(message))
}

// stream is a server stream with another context and, where check is set, a look at each received message.
type stream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // grpc.ServerStream carries its context by design
	check func(any) error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err // io.EOF must stay what it is
	}
	if s.check == nil {
		return nil
	}
	return s.check(m)
}
