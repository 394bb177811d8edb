// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	"github.com/google/uuid"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

type projectCmd struct {
	Create       projectCreateCmd  `cmd:"" help:"Create a project; you become its first owner."`
	Get          projectGetCmd     `cmd:"" help:"Show a project."`
	List         projectListCmd    `cmd:"" help:"List the projects that you can see, oldest first."`
	Update       projectUpdateCmd  `cmd:"" help:"Change a project's name or description."`
	Archive      projectArchiveCmd `cmd:"" help:"Make a project read-only."`
	Restore      projectRestoreCmd `cmd:"" help:"Make an archived project active again."`
	Delete       projectDeleteCmd  `cmd:"" help:"Delete a project and its members, for good."`
	Members      membersCmd        `cmd:"" help:"List a project's members."`
	AddMember    addMemberCmd      `cmd:"" help:"Add a user to a project."`
	SetRole      setRoleCmd        `cmd:"" help:"Change a member's role."`
	RemoveMember removeMemberCmd   `cmd:"" help:"Remove a member from a project."`
	Import       importCmd         `cmd:"" help:"Add the users that a file lists, all of them or none."`
}

func (a *app) projects() appv1.ProjectServiceClient {
	return appv1.NewProjectServiceClient(a.conn(serviceApp))
}

// projectArg names a project.
type projectArg struct {
	Project string `arg:"" help:"Id, projects/ID, or slug."`
}

// name returns "projects/ID". A slug is looked up at App.
func (p projectArg) name(ctx context.Context, a *app) (string, error) {
	text := p.Project
	if strings.Contains(text, "/") || uuid.Validate(text) == nil {
		id, err := lastID("a project", text)
		return "projects/" + id, err
	}
	r, err := a.projects().ListProjects(ctx, &appv1.ListProjectsRequest{Slug: text, ShowArchived: true})
	if err != nil {
		return "", err
	}
	if len(r.GetProjects()) == 0 {
		return "", &failure{code: exitNotFound, text: "no project that you can see has the slug " + text, hint: "counterfoil project list --archived"}
	}
	return r.GetProjects()[0].GetName(), nil
}

func showProject(a *app, p *appv1.Project) error {
	return a.out.result(p,
		[2]string{"project", p.GetName()},
		[2]string{"slug", p.GetSlug()},
		[2]string{"name", p.GetDisplayName()},
		[2]string{"description", p.GetDescription()},
		[2]string{"state", word(p.GetState(), "PROJECT_STATE_")},
		[2]string{"creator", p.GetCreator()},
		[2]string{"etag", p.GetEtag()},
		[2]string{"created", whenUTC(p.GetCreateTime())},
		[2]string{"changed", whenUTC(p.GetUpdateTime())},
	)
}

type projectCreateCmd struct {
	Slug        string `arg:"" help:"Short name for commands: unique, never changed; a-z, 0-9 and -."`
	DisplayName string `required:"" placeholder:"NAME" help:"Name for people."`
	Description string `placeholder:"TEXT" help:"What it is about."`
	requestFlags
}

// Help implements kong.HelpProvider.
func (projectCreateCmd) Help() string {
	return examples(`counterfoil project create apollo --display-name "Apollo" --description "To the moon"`)
}

// Run creates the project.
func (c *projectCreateCmd) Run(ctx context.Context, a *app) error {
	r, err := a.projects().CreateProject(ctx, &appv1.CreateProjectRequest{
		Project:   &appv1.Project{Slug: c.Slug, DisplayName: c.DisplayName, Description: c.Description},
		RequestId: c.id(a),
	})
	if err != nil {
		return err
	}
	return showProject(a, r.GetProject())
}

type projectGetCmd struct{ projectArg }

// Help implements kong.HelpProvider.
func (projectGetCmd) Help() string {
	return examples("counterfoil project get apollo", "counterfoil project get projects/01980000-0000-7000-8000-000000000001 -o json")
}

// Run shows the project.
func (c *projectGetCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.projects().GetProject(ctx, &appv1.GetProjectRequest{Name: name})
	if err != nil {
		return err
	}
	return showProject(a, r.GetProject())
}

type projectListCmd struct {
	Archived bool `help:"Archived ones, too."`
	pageFlags
}

// Help implements kong.HelpProvider.
func (projectListCmd) Help() string {
	return examples("counterfoil project list", "counterfoil project list --archived --all -o json")
}

// Run lists the projects.
func (c *projectListCmd) Run(ctx context.Context, a *app) error {
	return list[*appv1.Project]{
		what:   "projects",
		header: []string{"SLUG", "NAME", "STATE", "CREATED (UTC)", "PROJECT"},
		row: func(p *appv1.Project) []string {
			return []string{p.GetSlug(), p.GetDisplayName(), word(p.GetState(), "PROJECT_STATE_"), when(p.GetCreateTime()), p.GetName()}
		},
		get: func(ctx context.Context, size int32, token string) ([]*appv1.Project, string, error) {
			r, err := a.projects().ListProjects(ctx, &appv1.ListProjectsRequest{PageSize: size, PageToken: token, ShowArchived: c.Archived})
			return r.GetProjects(), r.GetNextPageToken(), err
		},
	}.show(ctx, a, c.pageFlags)
}

type projectUpdateCmd struct {
	projectArg
	DisplayName *string `placeholder:"NAME" help:"The new name."`
	Description *string `placeholder:"TEXT" help:"The new description; may be empty."`
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (projectUpdateCmd) Help() string {
	return examples(`counterfoil project update apollo --display-name "Apollo 11"`, `counterfoil project update apollo --description "" --etag 4`)
}

// Run changes what was given.
func (c *projectUpdateCmd) Run(ctx context.Context, a *app) error {
	change := &appv1.Project{Etag: c.Etag}
	var mask maskBuilder
	mask.text("display_name", c.DisplayName, &change.DisplayName)
	mask.text("description", c.Description, &change.Description)
	if mask.empty() {
		return usage("nothing to change: give --display-name or --description")
	}
	var err error
	if change.Name, err = c.name(ctx, a); err != nil {
		return err
	}
	r, err := a.projects().UpdateProject(ctx, &appv1.UpdateProjectRequest{Project: change, UpdateMask: mask.mask(), RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showProject(a, r.GetProject())
}

type projectArchiveCmd struct {
	projectArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (projectArchiveCmd) Help() string { return examples("counterfoil project archive apollo") }

// Run archives the project.
func (c *projectArchiveCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.projects().ArchiveProject(ctx, &appv1.ArchiveProjectRequest{Name: name, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showProject(a, r.GetProject())
}

type projectRestoreCmd struct {
	projectArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (projectRestoreCmd) Help() string { return examples("counterfoil project restore apollo") }

// Run restores the project.
func (c *projectRestoreCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.projects().RestoreProject(ctx, &appv1.RestoreProjectRequest{Name: name, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showProject(a, r.GetProject())
}

type projectDeleteCmd struct {
	projectArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (projectDeleteCmd) Help() string {
	return "It asks first; without a terminal it needs --yes.\n\n" + examples("counterfoil project delete apollo --yes")
}

// Run deletes the project.
func (c *projectDeleteCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	if err := a.confirm("Delete the project %s (%s) and all its members for good?", c.Project, name); err != nil {
		return err
	}
	r, err := a.projects().DeleteProject(ctx, &appv1.DeleteProjectRequest{Name: name, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r, [2]string{"deleted", name})
}
