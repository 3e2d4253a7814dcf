-- One generation of the views: tables in the schema that is first on the search path, empty.
-- Readers use the views of the same names in the schema `views`. Each column is described in docs/views.md, which is
-- made from the comments below. Times are those that the records carry, never those of writing.

create table thread_states (
    tenant text not null,
    thread text not null,
    topic text not null,
    "partition" int not null,
    "offset" bigint not null,
    fold_version int not null,
    active boolean not null,
    quarantined text,
    state json not null,
    primary key (tenant, thread)
) with (fillfactor = 70);
create index thread_states_of_partition on thread_states (topic, "partition", tenant, thread);
create index thread_states_active on thread_states (topic, "partition") where active;
create index thread_states_active_by_key on thread_states (topic, tenant, thread) where active;
create index thread_states_quarantined on thread_states (topic, tenant, thread) where quarantined is not null;

comment on table thread_states is 'The folded control state of every key ever seen. For services, not for people.';
comment on column thread_states.tenant is 'Whose thread it is.';
comment on column thread_states.thread is 'Its id, unique within the tenant.';
comment on column thread_states.topic is 'That holds the records.';
comment on column thread_states."partition" is 'Of the topic, in which all of the threads records are.';
comment on column thread_states."offset" is 'Of the last record that is in the state.';
comment on column thread_states.fold_version is 'Of the fold that made the state; readers of another version fold the log themselves.';
comment on column thread_states.active is 'Whether a service would act for the thread without a new record.';
comment on column thread_states.quarantined is 'Why the views of this thread are not kept up: a record that the database refused. Its events and its state go on.';
comment on column thread_states.state is 'As schemas.state.dump_state writes it; json, not jsonb, because the order of keys counts.';

create table positions (
    topic text not null,
    "partition" int not null,
    next_offset bigint not null,
    owner text not null,
    owner_epoch bigint not null,
    cluster_id text not null,
    last_record text,
    updated_at timestamptz not null,
    primary key (topic, "partition")
) with (fillfactor = 50);

comment on table positions is 'How far each partition of the log is in the views. Written in the transaction of the rows.';
comment on column positions.topic is 'Of the log.';
comment on column positions."partition" is 'Of the topic.';
comment on column positions.next_offset is 'Offset of the first record that is not in the views.';
comment on column positions.owner is 'The projector that writes this partition.';
comment on column positions.owner_epoch is 'Goes up with every change of owner; a projector with an older one can no longer write.';
comment on column positions.cluster_id is 'The Kafka cluster whose offsets these are.';
comment on column positions.last_record is 'Digest of the last record that is in the views. Where the log has another one there, it is another log.';
comment on column positions.updated_at is 'Time of writing, by the database. The only such time in a generation.';

create table threads (
    tenant text not null,
    thread text not null,
    "partition" int not null,
    status text not null,
    title text,
    labels jsonb not null,
    archived boolean not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    seq bigint not null,
    turn bigint,
    last_turn bigint not null,
    last_outcome text,
    queued int not null,
    waiting_calls int not null,
    unknown_calls int not null,
    config jsonb not null,
    config_seq bigint not null,
    lineage_kind text,
    parent text,
    parent_seq bigint,
    parent_call text,
    parent_plan_version bigint,
    parent_task text,
    depth bigint not null,
    plan_version bigint,
    primary key (tenant, thread)
) with (fillfactor = 80);
create index threads_created on threads (tenant, created_at, thread);
create index threads_parent on threads (tenant, parent, thread) where parent is not null;

comment on table threads is 'A row per thread that exists.';
comment on column threads.tenant is 'Whose thread it is.';
comment on column threads.thread is 'Its id, unique within the tenant.';
comment on column threads."partition" is 'Of thread-events, in which the thread''s records are.';
comment on column threads.status is 'importing, active, closing or closed.';
comment on column threads.title is 'Null where it has none.';
comment on column threads.labels is 'Names and values for people and for routing.';
comment on column threads.archived is 'Whether it was put away; it can be read and written all the same.';
comment on column threads.created_at is 'When it began.';
comment on column threads.updated_at is 'Of the last record that took effect.';
comment on column threads.seq is 'Of the last record, whatever its effect.';
comment on column threads.turn is 'The open turn.';
comment on column threads.last_turn is 'The last turn that was started; 0 where there was none.';
comment on column threads.last_outcome is 'Of the last turn that ended.';
comment on column threads.queued is 'Inputs that no turn or step has taken.';
comment on column threads.waiting_calls is 'Calls that wait for an approval.';
comment on column threads.unknown_calls is 'Calls of which is not known whether they ran.';
comment on column threads.config is 'In force for the next turn.';
comment on column threads.config_seq is 'Seq of the record that set it.';
comment on column threads.lineage_kind is 'fork or child; null where the thread has no parent.';
comment on column threads.parent is 'The thread it was forked from or works for.';
comment on column threads.parent_seq is 'Seq in the parent up to which a fork shares its history, or at which a child was asked for.';
comment on column threads.parent_call is 'The parent''s call whose result a child thread is.';
comment on column threads.parent_plan_version is 'With parent_task: the version of the parent''s plan that began the child.';
comment on column threads.parent_task is 'The task of the parent''s plan that a child thread works on.';
comment on column threads.depth is 'How many parents a child thread has above it; a fork is as deep as what it was forked from.';
comment on column threads.plan_version is 'Of the plan in force.';

create table turns (
    tenant text not null,
    thread text not null,
    turn bigint not null,
    status text not null,
    outcome text,
    reason text,
    inputs text[] not null,
    model text not null,
    agent_version text not null,
    config_seq bigint not null,
    base bigint not null,
    started_seq bigint not null,
    started_at timestamptz not null,
    cancel_cause text,
    cancelled_at timestamptz,
    recovered_at timestamptz,
    recovered_by text,
    steps bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    waited_ms bigint not null,
    ended_seq bigint,
    ended_at timestamptz,
    unknown_calls text[],
    primary key (tenant, thread, turn)
) with (fillfactor = 80);
-- For finding the turn that was open at a seq.
create index turns_started on turns (tenant, thread, started_seq);
create index turns_open on turns (tenant, thread) where status <> 'ended';

comment on table turns is 'A row per turn: one user goal, from its input to one outcome.';
comment on column turns.tenant is 'Whose thread it is.';
comment on column turns.thread is 'In which it is.';
comment on column turns.turn is 'Number within the thread, from 1.';
comment on column turns.status is 'open, cancelling or ended.';
comment on column turns.outcome is 'completed, aborted, failed or interrupted, once ended.';
comment on column turns.reason is 'Why it ended so, where its end says so.';
comment on column turns.inputs is 'Those that started it; steps list the steering inputs that they took.';
comment on column turns.model is 'Of the configuration that the turn pinned.';
comment on column turns.agent_version is 'Of the software that started it.';
comment on column turns.config_seq is 'Seq of the record that set the pinned configuration.';
comment on column turns.base is 'Seq of the last compaction, rewind or import before it; 0 where there was none.';
comment on column turns.started_seq is 'Seq of its start.';
comment on column turns.started_at is 'When it started.';
comment on column turns.cancel_cause is 'user, limit, recovery, parent, interrupt or close.';
comment on column turns.cancelled_at is 'When its cancelling began.';
comment on column turns.recovered_at is 'When another owner took it over, the last time.';
comment on column turns.recovered_by is 'The runtime that took it over, the last time.';
comment on column turns.steps is 'Finished model calls.';
comment on column turns.input_tokens is 'Sum over its finished model calls.';
comment on column turns.output_tokens is 'Sum over its finished model calls.';
comment on column turns.waited_ms is 'Time in which nothing could go on without a person, or only child threads worked; it counts against no limit.';
comment on column turns.ended_seq is 'Seq of the record that ended it.';
comment on column turns.ended_at is 'When it ended.';
comment on column turns.unknown_calls is 'Named by its end; resolved afterwards or not.';

create table steps (
    tenant text not null,
    thread text not null,
    turn bigint not null,
    step bigint not null,
    status text not null,
    attempts bigint not null,
    failures int not null,
    inputs text[] not null,
    model text not null,
    owner text not null,
    context_seq bigint not null,
    context_items bigint not null,
    context_hash text not null,
    tools_hash text not null,
    started_seq bigint not null,
    started_at timestamptz not null,
    attempt_at timestamptz not null,
    error_kind text,
    error text,
    retriable boolean,
    retry_at timestamptz,
    finished_seq bigint,
    finished_at timestamptz,
    finished_attempt bigint,
    stop_reason text,
    response_id text,
    calls int,
    input_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    reasoning_tokens bigint,
    primary key (tenant, thread, turn, step)
) with (fillfactor = 80);

comment on table steps is 'A row per model call and its retries.';
comment on column steps.tenant is 'Whose thread it is.';
comment on column steps.thread is 'In which it is.';
comment on column steps.turn is 'In which it is.';
comment on column steps.step is 'Number within the turn, from 1.';
comment on column steps.status is 'open, failed, finished, or dropped where its turn ended before.';
comment on column steps.attempts is 'How often it was started.';
comment on column steps.failures is 'Attempts that failed; those that were handed over do not count.';
comment on column steps.inputs is 'Steering inputs that it took.';
comment on column steps.model is 'As the latest attempt asked for it.';
comment on column steps.owner is 'The runtime that made the latest attempt.';
comment on column steps.context_seq is 'Seq up to which the latest attempt had read the thread back.';
comment on column steps.context_items is 'How many items the model was shown.';
comment on column steps.context_hash is 'sha256 over the digests of the items that the model was shown.';
comment on column steps.tools_hash is 'Hash of the tools that the model was offered.';
comment on column steps.started_seq is 'Of the first attempt.';
comment on column steps.started_at is 'Of the first attempt.';
comment on column steps.attempt_at is 'When the latest attempt started.';
comment on column steps.error_kind is 'Of the last failure, kept when a later attempt goes well.';
comment on column steps.error is 'What the last failure said.';
comment on column steps.retriable is 'Whether another attempt may go well, after the last failure.';
comment on column steps.retry_at is 'Not before then, after the last failure.';
comment on column steps.finished_seq is 'Seq of the answer.';
comment on column steps.finished_at is 'When the answer was recorded.';
comment on column steps.finished_attempt is 'Whose answer won; not always the latest.';
comment on column steps.stop_reason is 'Why the model stopped, as its provider says.';
comment on column steps.response_id is 'The providers id of the answer.';
comment on column steps.calls is 'How many tool calls the answer proposes.';
comment on column steps.input_tokens is 'Of the answer, as the provider counted them.';
comment on column steps.output_tokens is 'Of the answer, as the provider counted them.';
comment on column steps.cached_tokens is 'Input tokens that the provider had in its cache.';
comment on column steps.reasoning_tokens is 'Output tokens that were reasoning.';

create table tool_calls (
    tenant text not null,
    thread text not null,
    call text not null,
    turn bigint not null,
    step bigint not null,
    index int not null,
    tool text not null,
    args jsonb not null,
    malformed text,
    call_hash text not null,
    status text not null,
    outcome text,
    effect text,
    pool text,
    proposed_seq bigint not null,
    proposed_at timestamptz not null,
    approval_reason text,
    approval_requested_at timestamptz,
    approval_expires_at timestamptz,
    decision text,
    decided_by text,
    decided_at timestamptz,
    decision_reason text,
    attempts bigint not null,
    lost_attempts int not null,
    dispatched_at timestamptz,
    deadline_at timestamptz,
    timeout_ms bigint,
    idempotency_key text,
    claim uuid,
    executor text,
    started_at timestamptz,
    lease_seconds bigint,
    evidence text,
    resolution text,
    resolved_by text,
    note text,
    milliseconds bigint,
    changes jsonb,
    artifacts jsonb,
    settled_seq bigint,
    settled_at timestamptz,
    settled_by uuid,
    resolved_at timestamptz,
    primary key (tenant, thread, turn, step, index)
) with (fillfactor = 80);
create index tool_calls_for_people on tool_calls (tenant, status, thread, turn, step, index)
    where status in ('waiting', 'unknown');

comment on table tool_calls is 'A row per call that a model proposed. In the schema views it has a column more, result: what came of it.';
comment on column tool_calls.tenant is 'Whose thread it is.';
comment on column tool_calls.thread is 'In which it is.';
comment on column tool_calls.call is 'turn.step.index, such as 3.1.0. To look one up, name the three: they are the key.';
comment on column tool_calls.turn is 'In which it was proposed.';
comment on column tool_calls.step is 'In which it was proposed.';
comment on column tool_calls.index is 'Number within the step, from 0.';
comment on column tool_calls.tool is 'Name of the tool.';
comment on column tool_calls.args is 'In force: an approver may have edited them.';
comment on column tool_calls.malformed is 'The arguments as the model wrote them where they are no JSON object.';
comment on column tool_calls.call_hash is 'Of tool and arguments in force; what an approval is bound to.';
comment on column tool_calls.status is 'proposed, waiting, approved, dispatched, running, repeatable, unknown or settled.';
comment on column tool_calls.outcome is 'succeeded, failed, timed_out, cancelled, denied, expired, not_started or abandoned, once settled.';
comment on column tool_calls.effect is 'pure, idempotent, reconcilable or unsafe, as the last dispatch said.';
comment on column tool_calls.pool is 'Whose executors may claim it.';
comment on column tool_calls.proposed_seq is 'Seq of the answer that proposes it.';
comment on column tool_calls.proposed_at is 'When it was proposed.';
comment on column tool_calls.approval_reason is 'Why a person is asked.';
comment on column tool_calls.approval_requested_at is 'Since when a person is asked.';
comment on column tool_calls.approval_expires_at is 'Until when a person may answer.';
comment on column tool_calls.decision is 'approved, edited, denied or expired.';
comment on column tool_calls.decided_by is 'The actor of the decision: user:…, policy:… or service:….';
comment on column tool_calls.decided_at is 'When it was decided.';
comment on column tool_calls.decision_reason is 'Why it was denied.';
comment on column tool_calls.attempts is 'How often it was dispatched.';
comment on column tool_calls.lost_attempts is 'Claimed attempts whose end nobody saw.';
comment on column tool_calls.dispatched_at is 'When its latest attempt was given to the executors.';
comment on column tool_calls.deadline_at is 'When the latest attempt is given up that nobody claimed or, in a pool without executors, answered.';
comment on column tool_calls.timeout_ms is 'How long the tool may run.';
comment on column tool_calls.idempotency_key is 'What the tool is given to recognise a repetition by.';
comment on column tool_calls.claim is 'Event id of the last claim that won.';
comment on column tool_calls.executor is 'Who claimed it last.';
comment on column tool_calls.started_at is 'When the latest claim was made.';
comment on column tool_calls.lease_seconds is 'How long the claim holds without a sign of life.';
comment on column tool_calls.evidence is 'Why the last lost attempt counts as lost.';
comment on column tool_calls.resolution is 'What a person or the downstream said of an unknown call: succeeded, failed, again or abandoned.';
comment on column tool_calls.resolved_by is 'Who answered for it.';
comment on column tool_calls.note is 'What they said.';
comment on column tool_calls.milliseconds is 'How long the tool ran, as its executor measured it.';
comment on column tool_calls.changes is 'Files that the call changed.';
comment on column tool_calls.artifacts is 'Those that the tool made: sha256, size, media_type and name of each.';
comment on column tool_calls.settled_seq is 'Of the record that settled it; its result is the item of that record.';
comment on column tool_calls.settled_at is 'When it was settled.';
comment on column tool_calls.settled_by is 'Event id of that record.';
comment on column tool_calls.resolved_at is 'When it was resolved, the last time.';

create table items (
    tenant text not null,
    thread text not null,
    seq bigint not null,
    part int not null,
    kind text not null,
    turn bigint,
    step bigint,
    place bigint,
    content jsonb not null,
    digest text not null,
    input text,
    call text,
    dropped text,
    rewound_at bigint,
    compacted_at bigint,
    primary key (tenant, thread, seq, part)
) with (fillfactor = 80);
-- Inputs in the order in which they came, by their ids, and in the order in which they were taken. Where most threads are
-- so short that any of these would do, the planner takes the last that fits: long threads depend on it, and a test looks.
create index items_inputs on items (tenant, thread, seq) where input is not null;
create index items_by_input on items (tenant, thread, input) where input is not null;
create index items_taken on items (tenant, thread, place) where input is not null and dropped is null;
create index items_summaries on items (tenant, thread, seq) where kind = 'summary';

comment on table items is 'What was said: messages, reasoning, calls, results and summaries, as history keeps them. The model sees those with a place that are neither dropped nor rewound nor compacted: the summary first, then by place, seq and part.';
comment on column items.tenant is 'Whose thread it is.';
comment on column items.thread is 'In which it is.';
comment on column items.seq is 'Of the record that brought it.';
comment on column items.part is 'Number within that record, from 0.';
comment on column items.kind is 'message, reasoning, tool_call, tool_result, resolution or summary.';
comment on column items.turn is 'Null for a message that waits; of a summary, the last turn that it may speak of.';
comment on column items.step is 'Null for inputs that started a turn, and for a summary.';
comment on column items.place is 'Seq of the record that put it into the context; null for a message that waits.';
comment on column items.content is 'As the model is shown it.';
comment on column items.digest is 'sha256 over what the item is.';
comment on column items.input is 'Id of the input that a user''s message is.';
comment on column items.call is 'Of calls and their results.';
comment on column items.dropped is 'Kind of the event by which a waiting message was withdrawn or discarded.';
comment on column items.rewound_at is 'Seq of the rewind that took it out of the context.';
comment on column items.compacted_at is 'Seq of the summary that stands for it; null again once a rewind has taken that summary away.';

create table plans (
    tenant text not null,
    thread text not null,
    version bigint not null,
    status text not null,
    tasks jsonb not null,
    proposed_seq bigint not null,
    proposed_at timestamptz not null,
    proposed_by text not null,
    call text,
    decided_seq bigint,
    decided_at timestamptz,
    decided_by text,
    decision_reason text,
    superseded_seq bigint,
    superseded_at timestamptz,
    primary key (tenant, thread, version)
) with (fillfactor = 80);
create index plans_waiting on plans (tenant, thread, version) where status = 'waiting';

comment on table plans is 'A row per version of a thread''s plan.';
comment on column plans.tenant is 'Whose thread it is.';
comment on column plans.thread is 'Whose plan it is.';
comment on column plans.version is 'From 1, in the order in which they were proposed.';
comment on column plans.status is 'waiting for an answer, in_force, rejected, or superseded where another version took its place.';
comment on column plans.tasks is 'As proposed: id, title, depends_on and, where there are some, instructions of each.';
comment on column plans.proposed_seq is 'Seq of the proposal.';
comment on column plans.proposed_at is 'When it was proposed.';
comment on column plans.proposed_by is 'Actor of the proposal.';
comment on column plans.call is 'The tool call that proposed it, and whose result tells what came of it; null where a person or a backend did.';
comment on column plans.decided_seq is 'Seq of the answer.';
comment on column plans.decided_at is 'When it was approved or rejected.';
comment on column plans.decided_by is 'Who approved or rejected it.';
comment on column plans.decision_reason is 'Why it was rejected.';
comment on column plans.superseded_seq is 'Seq of the record that put another version in its place.';
comment on column plans.superseded_at is 'When another version took its place.';

create table tasks (
    tenant text not null,
    thread text not null,
    version bigint not null,
    task text not null,
    place int not null,
    title text not null,
    instructions text,
    depends_on text[] not null,
    left_out boolean not null,
    status text not null,
    child text,
    result jsonb,
    changed_seq bigint not null,
    started_at timestamptz,
    ended_at timestamptz,
    primary key (tenant, thread, version, task)
) with (fillfactor = 80);

comment on table tasks is 'A row per task and version of a plan that came in force; a task that the next version keeps goes on in a row of its own.';
comment on column tasks.tenant is 'Whose thread it is.';
comment on column tasks.thread is 'Whose plan it is.';
comment on column tasks.version is 'Of the plan.';
comment on column tasks.task is 'Its id: the same in every version that keeps it.';
comment on column tasks.place is 'In the order of the plan, from 0.';
comment on column tasks.title is 'For people.';
comment on column tasks.instructions is 'For whoever does it.';
comment on column tasks.depends_on is 'Tasks that have to succeed before.';
comment on column tasks.left_out is 'Whether the version does not name it: it ran when the version came in force, and is being stopped.';
comment on column tasks.status is 'pending, running, succeeded, failed or cancelled; continued where it went on in the next version.';
comment on column tasks.child is 'The thread that does it.';
comment on column tasks.result is 'What came of it; a version that keeps a task which had ended shows it too.';
comment on column tasks.changed_seq is 'Seq of the last record that changed the row.';
comment on column tasks.started_at is 'When it began to run, in the version in which it did.';
comment on column tasks.ended_at is 'When it ended, in the version in which it did.';

create table artifacts (
    tenant text not null,
    thread text not null,
    seq bigint not null,
    part int not null,
    kind text not null,
    effect text not null,
    call text,
    sha256 text not null,
    size bigint,
    media_type text,
    name text,
    at timestamptz not null,
    primary key (tenant, thread, seq, part)
);
create index artifacts_by_content on artifacts (tenant, sha256, thread, seq, part);
-- The last change of a file, by its path: the beginning of it, since a path may be longer than an entry of an index.
create index artifacts_of_files on artifacts (tenant, thread, left(name, 200), seq) where kind in ('before', 'after');

comment on table artifacts is 'A row for each time that a record names an artifact, whatever came of the record; the bytes themselves are stored once per content.';
comment on column artifacts.tenant is 'Whose thread it is.';
comment on column artifacts.thread is 'In which it is named.';
comment on column artifacts.seq is 'Of the record that names it.';
comment on column artifacts.part is 'Number within that record, from 0.';
comment on column artifacts.kind is 'recorded; input; tool_call where it came with a call''s result; before or after: what a file held that a call changed, and what it was given; skill.';
comment on column artifacts.effect is 'Of the record: applied, duplicate, superseded, rejected or ignored.';
comment on column artifacts.call is 'The tool call that made it.';
comment on column artifacts.sha256 is 'Hash of the content.';
comment on column artifacts.size is 'Bytes, where the record says it.';
comment on column artifacts.media_type is 'As its producer names it, where the record says it.';
comment on column artifacts.name is 'As its producer names it; of a file its path, of a skill its name.';
comment on column artifacts.at is 'When it was named.';

create table usage (
    tenant text not null,
    thread text not null,
    seq bigint not null,
    kind text not null,
    effect text not null,
    turn bigint,
    step bigint,
    attempt bigint,
    model text not null,
    response_id text,
    at timestamptz not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cached_tokens bigint not null,
    reasoning_tokens bigint not null,
    primary key (tenant, thread, seq)
);
create index usage_at on usage (tenant, at);
create index usage_responses on usage (tenant, response_id, at, thread, seq) where response_id is not null;

comment on table usage is 'A row per response of a model and thread, also of one that lost its race: it was paid for all the same. In the schema views it has a column more, counted: count only those rows.';
comment on column usage.tenant is 'Who pays.';
comment on column usage.thread is 'In which the response was recorded.';
comment on column usage.seq is 'Of the record that brought the response.';
comment on column usage.kind is 'step or compaction.';
comment on column usage.effect is 'applied, or superseded where another answer won.';
comment on column usage.turn is 'In which it came; null for a compaction between turns.';
comment on column usage.step is 'That it answers; null for a compaction.';
comment on column usage.attempt is 'Of the step, whose answer it is; null for a compaction.';
comment on column usage.model is 'Of the configuration in force for it.';
comment on column usage.response_id is 'The providers id; null where it gives none.';
comment on column usage.at is 'When it was recorded.';
comment on column usage.input_tokens is 'As the provider counted them.';
comment on column usage.output_tokens is 'As the provider counted them.';
comment on column usage.cached_tokens is 'Input tokens that the provider had in its cache.';
comment on column usage.reasoning_tokens is 'Output tokens that were reasoning.';

create table events (
    tenant text not null,
    thread text not null,
    seq bigint not null,
    "partition" int not null,
    "offset" bigint not null,
    id uuid not null,
    type text not null,
    time timestamptz not null,
    actor text not null,
    source text not null,
    cause text,
    data_hash text not null,
    chain text not null,
    effect text not null,
    reason text,
    data jsonb,
    facts jsonb,
    primary key (tenant, thread, seq)
);
-- The configurations of a thread, of which a fork of an earlier seq takes those that were in force by then.
create index events_configurations on events (tenant, thread, seq) where type in ('thread.created', 'thread.configured') and effect = 'applied';
-- What an import looks for in the thread that it goes on with.
create index events_of_imports on events (tenant, thread, seq) where type in ('thread.rewound', 'artifact.recorded') and effect = 'applied';
-- For reading a partition by offset, after a crash of whoever tells others of its rows. Rows come nearly in that order.
create index events_positions on events using brin ("offset") with (pages_per_range = 16, autosummarize = on);
-- For client commands that a state no longer remembers; a query must repeat the condition to use it.
create index events_commands on events (tenant, thread, id) where actor like 'user:%';

comment on table events is 'The log by thread and seq, with what each record came to.';
comment on column events.tenant is 'Whose thread it is.';
comment on column events.thread is 'Its id, unique within the tenant.';
comment on column events.seq is 'Number of the record within its thread, from 1 without gaps.';
comment on column events."partition" is 'Of thread-events, in which the threads records are.';
comment on column events."offset" is 'Of the record in its partition: its ordinal.';
comment on column events.id is 'Event id; a record that came to nothing may share it with one that took effect.';
comment on column events.type is 'Such as tool_call.finished; the whole CloudEvents type where it is not known.';
comment on column events.time is 'As its producer wrote it; the broker''s where that cannot be read.';
comment on column events.actor is 'user:…, service:…, policy:… or import:….';
comment on column events.source is 'Service and instance that appended it.';
comment on column events.cause is 'Id of the event that led to this one.';
comment on column events.data_hash is 'sha256 of the value''s bytes.';
comment on column events.chain is 'Hash chain of the thread up to here.';
comment on column events.effect is 'applied, duplicate, superseded, rejected or ignored.';
comment on column events.reason is 'Why it is not applied.';
comment on column events.data is 'Null where the value cannot be decoded or stored.';
comment on column events.facts is 'What can be counted of the record; null where there is nothing. Each key is described below, under facts.';

create table dead_letters (
    topic text not null,
    "partition" int not null,
    "offset" bigint not null,
    tenant text,
    thread text,
    seq bigint,
    reason text not null,
    at timestamptz not null,
    key bytea,
    headers jsonb not null,
    value bytea,
    value_bytes bigint not null,
    fault text not null,
    primary key (topic, "partition", "offset")
);
create index dead_letters_at on dead_letters (at, topic, "partition", "offset");
create index dead_letters_of_tenant on dead_letters (tenant, at, topic, "partition", "offset");

comment on table dead_letters is 'Records that could not be decoded or stored. Also on the topic thread-events-dlq.';
comment on column dead_letters.topic is 'Where the record is.';
comment on column dead_letters."partition" is 'Where the record is.';
comment on column dead_letters."offset" is 'Where the record is.';
comment on column dead_letters.tenant is 'Null where the key cannot be read.';
comment on column dead_letters.thread is 'Null where the key cannot be read.';
comment on column dead_letters.seq is 'In its thread, where it has one.';
comment on column dead_letters.reason is 'What is wrong, in words.';
comment on column dead_letters.at is 'The broker''s time of the record.';
comment on column dead_letters.key is 'Of the record: its first bytes, up to a limit.';
comment on column dead_letters.headers is 'Pairs of name and value; what is no text is replaced.';
comment on column dead_letters.value is 'Its first bytes, up to a limit.';
comment on column dead_letters.value_bytes is 'Its whole length.';
comment on column dead_letters.fault is 'What is wrong, as a class: one of those that docs/operations.md lists.';

-- A thread has one tenant. Without being told, the planner takes the two for independent, believes that no thread has more
-- than a row, and then any index that begins with them is as good to it as the one that holds the whole key.
create statistics thread_states_of_threads (dependencies) on tenant, thread from thread_states;
create statistics threads_of_threads (dependencies) on tenant, thread from threads;
create statistics turns_of_threads (dependencies) on tenant, thread from turns;
create statistics steps_of_threads (dependencies) on tenant, thread from steps;
create statistics tool_calls_of_threads (dependencies) on tenant, thread from tool_calls;
create statistics items_of_threads (dependencies) on tenant, thread from items;
create statistics plans_of_threads (dependencies) on tenant, thread from plans;
create statistics tasks_of_threads (dependencies) on tenant, thread from tasks;
create statistics artifacts_of_threads (dependencies) on tenant, thread from artifacts;
create statistics usage_of_threads (dependencies) on tenant, thread from usage;
create statistics events_of_threads (dependencies) on tenant, thread from events;

create view tool_calls_with_results as
select
    c.*,
    (
        select i.content -> 'content'
        from items i
        where i.tenant = c.tenant and i.thread = c.thread and i.seq = c.settled_seq and i.call = c.call
            and i.kind in ('tool_result', 'resolution')
    ) as result
from tool_calls c;

comment on view tool_calls_with_results is 'The table tool_calls, with the results of the calls.';
comment on column tool_calls_with_results.result is 'What came of it, once settled: as the model is shown it.';

-- A thread that was imported from a copy repeats responses of another, and an import of a longer snapshot those of an
-- earlier one, which may have ended within a response. Of the rows of one response, that with the most tokens counts, of
-- several that of the earliest, of several at the same time that of the thread whose id comes first: the same whatever
-- came to be read first.
create view usage_counted as
select
    u.*,
    u.response_id is null or not exists (
        select
        from usage other
        where other.tenant = u.tenant and other.response_id = u.response_id
            and (-other.input_tokens - other.output_tokens, other.at, other.thread, other.seq)
                < (-u.input_tokens - u.output_tokens, u.at, u.thread, u.seq)
    ) as counted
from usage u;

comment on view usage_counted is 'The table usage, with what counts.';
comment on column usage_counted.counted is 'Whether the tokens count here. A response that several threads hold, because one is a copy, counts in one row alone: that with the most tokens, of several the earliest.';

create view approvals as
select tenant, thread, call, turn, step, index, tool, args, call_hash, effect,
    approval_reason as reason, approval_requested_at as requested_at, approval_expires_at as expires_at
from tool_calls
where status = 'waiting';

comment on view approvals is 'Calls that wait for a person''s approval.';
comment on column approvals.reason is 'Why a person is asked.';
comment on column approvals.requested_at is 'Since when a person is asked.';
comment on column approvals.expires_at is 'Until when a person may answer.';

create view unknown_calls as
select tenant, thread, call, turn, step, index, tool, args, call_hash, effect, pool, attempts, executor, started_at, evidence
from tool_calls
where status = 'unknown';

comment on view unknown_calls is 'Calls of which is not known whether they ran; they wait for a person.';

-- Columns that a view takes as they are mean there what they mean in their table.
do $$
declare
    taken record;
begin
    for taken in
        select shown.relname as name, a.attname as attribute, col_description(source.oid, b.attnum) as about
        from (
            values ('tool_calls_with_results', 'tool_calls'), ('usage_counted', 'usage'), ('approvals', 'tool_calls'),
                ('unknown_calls', 'tool_calls')
        ) as views (name, source)
        join pg_class as shown on shown.relname = views.name and shown.relnamespace = current_schema()::regnamespace
        join pg_class as source on source.relname = views.source and source.relnamespace = shown.relnamespace
        join pg_attribute as a on a.attrelid = shown.oid and a.attnum > 0
        join pg_attribute as b on b.attrelid = source.oid and b.attname = a.attname
        where col_description(shown.oid, a.attnum) is null
    loop
        execute format('comment on column %I.%I is %L', taken.name, taken.attribute, taken.about);
    end loop;
end
$$;
