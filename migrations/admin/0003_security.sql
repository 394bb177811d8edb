-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- What the security-alerts consumer saw and what it concluded. It counts its own
-- observations, so nothing that another consumer does or prunes changes a count.

-- +goose Up
CREATE TABLE security_observations (
    event_id   uuid        NOT NULL,
    occur_time timestamptz NOT NULL,
    rule       text        NOT NULL,
    subject    text        NOT NULL,
    CONSTRAINT security_observations_pkey PRIMARY KEY (rule, event_id)
);
CREATE INDEX security_observations_subject_idx ON security_observations (rule, subject, occur_time);
COMMENT ON TABLE security_observations IS 'Written by the security-alerts consumer. One row for each rule that an event speaks to.';

CREATE TABLE security_alerts (
    id                uuid        NOT NULL,
    rule              text        NOT NULL,
    severity          text        NOT NULL,
    subject           text        NOT NULL,
    first_event_id    uuid        NOT NULL,
    last_event_id     uuid        NOT NULL,
    event_count       integer     NOT NULL,
    first_occur_time  timestamptz NOT NULL,
    last_occur_time   timestamptz NOT NULL,
    raise_time        timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT security_alerts_pkey PRIMARY KEY (id),
    CONSTRAINT security_alerts_first_event_key UNIQUE (rule, first_event_id),
    CONSTRAINT security_alerts_severity_check CHECK (severity IN ('LOW', 'MEDIUM', 'HIGH'))
);
CREATE INDEX security_alerts_subject_idx ON security_alerts (rule, subject, last_occur_time);
CREATE INDEX security_alerts_raise_idx ON security_alerts (raise_time DESC, id);
COMMENT ON TABLE security_alerts IS 'Written by the security-alerts consumer, once for each (rule, first triggering event).';

-- +goose Down
DROP TABLE security_alerts, security_observations;
