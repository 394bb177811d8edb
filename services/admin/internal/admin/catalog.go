// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"strconv"
	"strings"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// The owners whose streams are read.
const (
	ownerAuth = "auth"
	ownerApp  = "app"
)

// Owners lists the owners whose streams Admin reads, in the order of their names.
func Owners() []string { return []string{ownerApp, ownerAuth} }

// KnownTypes lists every event type that this release understands. The owner is the first part of a type, the schema version its
// last. It is the only list: Admin knows the contract and none of the services' code, and a test of the repository holds
// the list against what the services emit. An event of another type or version is parked and can be replayed after an
// upgrade (T17).
func KnownTypes() []string {
	return []string{
		"app.call.refused.v1",
		"app.member.added.v1",
		"app.member.refused.v1",
		"app.member.removed.v1",
		"app.member.updated.v1",
		"app.outbox.refused.v1",
		"app.outbox.requeued.v1",
		"app.project.archived.v1",
		"app.project.created.v1",
		"app.project.deleted.v1",
		"app.project.refused.v1",
		"app.project.restored.v1",
		"app.project.updated.v1",
		"auth.bootstrap_refused.v1",
		"auth.login.denied.v1",
		"auth.login.failed.v1",
		"auth.login.succeeded.v1",
		"auth.login_policy.created.v1",
		"auth.login_policy.update_refused.v1",
		"auth.login_policy.updated.v1",
		"auth.outbox.requeue_refused.v1",
		"auth.outbox.requeued.v1",
		"auth.role.grant_refused.v1",
		"auth.role.granted.v1",
		"auth.role.revoke_refused.v1",
		"auth.role.revoked.v1",
		"auth.session.deleted.v1",
		"auth.session.ended.v1",
		"auth.session.logout_refused.v1",
		"auth.session.refresh_refused.v1",
		"auth.session.refreshed.v1",
		"auth.session.revoke_all_refused.v1",
		"auth.session.revoke_refused.v1",
		"auth.session.revoked.v1",
		"auth.user.create_refused.v1",
		"auth.user.created.v1",
		"auth.user.delete_refused.v1",
		"auth.user.deleted.v1",
		"auth.user.disable_refused.v1",
		"auth.user.disabled.v1",
		"auth.user.enable_refused.v1",
		"auth.user.enabled.v1",
		"auth.user.locked.v1",
		"auth.user.password_change_refused.v1",
		"auth.user.password_changed.v1",
		"auth.user.password_rehashed.v1",
		"auth.user.password_reset.v1",
		"auth.user.password_reset_refused.v1",
		"auth.user.unlock_refused.v1",
		"auth.user.unlocked.v1",
		"auth.user.update_refused.v1",
		"auth.user.updated.v1",
	}
}

// Catalog tells the bridges and the replay of poison what is understood and who wants it.
func Catalog(subscriptions ...inbox.Subscription) inbox.Catalog {
	known := map[string]bool{}
	for _, t := range KnownTypes() {
		known[t] = true
	}
	return inbox.Catalog{
		Known: func(owner, eventType string, version int32) bool {
			return known[eventType] && strings.HasPrefix(eventType, owner+".") &&
				strings.HasSuffix(eventType, ".v"+strconv.Itoa(int(version)))
		},
		Subscriptions: subscriptions,
	}
}
