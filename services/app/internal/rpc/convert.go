// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strconv"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/apperr"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

func projectMessage(p store.Project) *appv1.Project {
	return &appv1.Project{
		Name:        app.ProjectName(p.ID),
		Slug:        p.Slug,
		DisplayName: p.DisplayName,
		Description: p.Description,
		State:       stateValue(p.State),
		Creator:     p.CreatorID.String(),
		CreateTime:  timestamppb.New(p.CreateTime),
		UpdateTime:  timestamppb.New(p.UpdateTime),
		Etag:        strconv.FormatInt(p.Version, 10),
	}
}

func memberMessage(m store.Member) *appv1.Member {
	return &appv1.Member{
		Name:       app.MemberName(m.ProjectID, m.ID),
		User:       m.UserID.String(),
		Role:       roleValue(m.Role),
		CreateTime: timestamppb.New(m.CreateTime),
		UpdateTime: timestamppb.New(m.UpdateTime),
		Etag:       strconv.FormatInt(m.Version, 10),
	}
}

func stateValue(s store.State) appv1.ProjectState {
	return appv1.ProjectState(appv1.ProjectState_value["PROJECT_STATE_"+string(s)])
}

func roleValue(r store.Role) appv1.MemberRole {
	return appv1.MemberRole(appv1.MemberRole_value["MEMBER_ROLE_"+string(r)])
}

// role returns what r stands for; the contract admits no other values.
func role(r appv1.MemberRole) store.Role {
	switch r {
	case appv1.MemberRole_MEMBER_ROLE_OWNER:
		return store.Owner
	case appv1.MemberRole_MEMBER_ROLE_EDITOR:
		return store.Editor
	default:
		return store.Viewer
	}
}

// The contract has checked names, ids and etags: what fails here is a rule missing there.

func projectID(field, name string) (uuid.UUID, error) {
	id, err := app.ParseProjectName(name)
	if err != nil {
		return uuid.Nil, apperr.InvalidField(field, "must be projects/{project}").WithCause(err)
	}
	return id, nil
}

func memberID(field, name string) (project, member uuid.UUID, err error) {
	project, member, err = app.ParseMemberName(name)
	if err != nil {
		return uuid.Nil, uuid.Nil, apperr.InvalidField(field, "must be projects/{project}/members/{member}").WithCause(err)
	}
	return project, member, nil
}

func userID(field, user string) (uuid.UUID, error) {
	id, err := uuid.Parse(user)
	if err != nil {
		return uuid.Nil, apperr.InvalidField(field, "must be a UUID").WithCause(err)
	}
	return id, nil
}

// version returns the version that an etag stands for, and 0 for none.
func version(field, etag string) (int64, error) {
	if etag == "" {
		return 0, nil
	}
	v, err := strconv.ParseInt(etag, 10, 64)
	if err != nil || v < 1 {
		return 0, apperr.InvalidField(field, "must be the etag as it was read").WithCause(err)
	}
	return v, nil
}
