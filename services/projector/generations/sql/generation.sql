-- One generation of the views: empty tables in the schema that is first on the search path.
-- Readers use the views of the same names in the schema `views`. The comments below are a public contract: docs/views.md
-- is made from them. Times are those of the records, never those of writing: a rebuild has to give the same rows.

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

comment on table thread_states is 'The folded control state of every key ever seen. Services read it; for people there are the other views.';
comment on column thread_states.tenant is 'Tenant that the thread belongs to.';
comment on column thread_states.thread is 'Id of the thread, unique within the tenant.';
comment on column thread_states.topic is 'Topic that holds the thread''s records.';
comment on column thread_states."partition" is 'Partition of the topic that holds all of the thread''s records.';
comment on column thread_states."offset" is 'Offset of the last record that is in the state.';
comment on column thread_states.fold_version is 'Version of the fold that made the state. Readers of another version fold the log themselves.';
comment on column thread_states.active is 'Whether a service would act for the thread without a new record.';
comment on column thread_states.quarantined is 'Why the views of this thread are no longer updated: the database refused a record. The thread''s events and state are still kept up. Null for all other threads.';
comment on column thread_states.state is 'The state as schemas.state.dump_state writes it. The type is json, not jsonb, because the order of keys matters.';

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

comment on table positions is 'How far each partition of the log is in the views. A position is written in the same transaction as its rows.';
comment on column positions.topic is 'Topic of the log.';
comment on column positions."partition" is 'Partition of the topic.';
comment on column positions.next_offset is 'Offset of the first record that is not in the views.';
comment on column positions.owner is 'Projector that writes this partition.';
comment on column positions.owner_epoch is 'Number that rises with every change of owner. A projector with an older number can no longer write.';
comment on column positions.cluster_id is 'Id of the Kafka cluster that the offsets belong to.';
comment on column positions.last_record is 'Digest of the last record that is in the views. If the log has another record at that offset, it is another log.';
comment on column positions.updated_at is 'When the database wrote the row. All other times in a generation are those of the records.';

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

comment on table threads is 'One row per thread that exists.';
comment on column threads.tenant is 'Tenant that the thread belongs to.';
comment on column threads.thread is 'Id of the thread, unique within the tenant.';
comment on column threads."partition" is 'Partition of thread-events that holds the thread''s records.';
comment on column threads.status is 'importing, active, closing or closed.';
comment on column threads.title is 'Title of the thread; null if it has none.';
comment on column threads.labels is 'Names and values, for people and for routing.';
comment on column threads.archived is 'Whether the thread is archived. An archived thread can still be read and written.';
comment on column threads.created_at is 'When the thread was created.';
comment on column threads.updated_at is 'Time of the last record that took effect.';
comment on column threads.seq is 'Seq of the thread''s last record, whatever its effect.';
comment on column threads.turn is 'Number of the open turn; null if no turn is open.';
comment on column threads.last_turn is 'Number of the last turn that was started; 0 before the first.';
comment on column threads.last_outcome is 'Outcome of the last turn that ended; null before the first.';
comment on column threads.queued is 'Number of inputs that no turn or step has taken yet.';
comment on column threads.waiting_calls is 'Number of tool calls that wait for an approval.';
comment on column threads.unknown_calls is 'Calls whose outcome is unknown: they may or may not have run.';
comment on column threads.config is 'Configuration for the next turn.';
comment on column threads.config_seq is 'Seq of the record that set the configuration.';
comment on column threads.lineage_kind is 'fork or child; null if the thread has no parent.';
comment on column threads.parent is 'Thread that this one was forked from, or works for; null if it has no parent.';
comment on column threads.parent_seq is 'Seq in the parent: for a fork, the last record that both share; for a child, the record that asked for it.';
comment on column threads.parent_call is 'Tool call of the parent whose result this child thread is.';
comment on column threads.parent_plan_version is 'Version of the parent''s plan that started this child; set together with parent_task.';
comment on column threads.parent_task is 'Task of the parent''s plan that this child thread works on.';
comment on column threads.depth is 'Number of parents above a child thread. A fork has the depth of the thread it was forked from.';
comment on column threads.plan_version is 'Version of the plan in force; null if there is none.';

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
-- Finds the turn that was open at a seq.
create index turns_started on turns (tenant, thread, started_seq);
create index turns_open on turns (tenant, thread) where status <> 'ended';

comment on table turns is 'One row per turn. A turn is one user goal, from its input to one outcome.';
comment on column turns.tenant is 'Tenant that the thread belongs to.';
comment on column turns.thread is 'Id of the thread.';
comment on column turns.turn is 'Number of the turn within the thread, from 1.';
comment on column turns.status is 'open, cancelling or ended.';
comment on column turns.outcome is 'completed, aborted, failed or interrupted; null until the turn has ended.';
comment on column turns.reason is 'Why the turn ended, if the record of its end says it.';
comment on column turns.inputs is 'Ids of the inputs that started the turn. Steering inputs are listed by the steps that took them.';
comment on column turns.model is 'Model of the configuration that the turn pinned.';
comment on column turns.agent_version is 'Version of the software that started the turn.';
comment on column turns.config_seq is 'Seq of the record that set the pinned configuration.';
comment on column turns.base is 'Seq of the last compaction, rewind or import before the turn; 0 if there was none.';
comment on column turns.started_seq is 'Seq of the record that started the turn.';
comment on column turns.started_at is 'When the turn started.';
comment on column turns.cancel_cause is 'Why the turn was cancelled: user, limit, recovery, parent, interrupt or close. Null if it was not.';
comment on column turns.cancelled_at is 'When cancelling began; null if it did not.';
comment on column turns.recovered_at is 'When another runtime last took the turn over; null if none did.';
comment on column turns.recovered_by is 'Runtime that last took the turn over.';
comment on column turns.steps is 'Number of finished model calls.';
comment on column turns.input_tokens is 'Input tokens of the turn''s finished model calls.';
comment on column turns.output_tokens is 'Output tokens of the turn''s finished model calls.';
comment on column turns.waited_ms is 'Milliseconds in which the turn waited for a person, or in which only its child threads worked. This time counts against no limit.';
comment on column turns.ended_seq is 'Seq of the record that ended the turn; null until then.';
comment on column turns.ended_at is 'When the turn ended; null until then.';
comment on column turns.unknown_calls is 'Calls that the turn''s end names as unknown. Some may have been resolved since.';

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

comment on table steps is 'One row per model call, its retries included.';
comment on column steps.tenant is 'Tenant that the thread belongs to.';
comment on column steps.thread is 'Id of the thread.';
comment on column steps.turn is 'Number of the turn that the step belongs to.';
comment on column steps.step is 'Number of the step within the turn, from 1.';
comment on column steps.status is 'open, failed or finished; dropped if the turn ended first.';
comment on column steps.attempts is 'Number of attempts that were started.';
comment on column steps.failures is 'Number of attempts that failed. Attempts that were handed over to another runtime do not count.';
comment on column steps.inputs is 'Ids of the steering inputs that the step took.';
comment on column steps.model is 'Model that the latest attempt asked for.';
comment on column steps.owner is 'Runtime that made the latest attempt.';
comment on column steps.context_seq is 'Seq up to which the latest attempt had read the thread.';
comment on column steps.context_items is 'Number of items that the model was shown.';
comment on column steps.context_hash is 'sha256 over the digests of the items that the model was shown.';
comment on column steps.tools_hash is 'Hash of the tools that the model was offered.';
comment on column steps.started_seq is 'Seq of the record that started the first attempt.';
comment on column steps.started_at is 'When the first attempt started.';
comment on column steps.attempt_at is 'When the latest attempt started.';
comment on column steps.error_kind is 'Kind of the last failure. It stays if a later attempt succeeds.';
comment on column steps.error is 'Message of the last failure.';
comment on column steps.retriable is 'Whether another attempt may succeed, after the last failure.';
comment on column steps.retry_at is 'Earliest time of the next attempt, after the last failure.';
comment on column steps.finished_seq is 'Seq of the record with the answer.';
comment on column steps.finished_at is 'When the answer was recorded.';
comment on column steps.finished_attempt is 'Number of the attempt whose answer took effect. It is not always the latest.';
comment on column steps.stop_reason is 'Why the model stopped, as the provider reports it.';
comment on column steps.response_id is 'Id that the provider gave the answer.';
comment on column steps.calls is 'Number of tool calls that the answer proposes.';
comment on column steps.input_tokens is 'Input tokens of the answer, as the provider counted them.';
comment on column steps.output_tokens is 'Output tokens of the answer, as the provider counted them.';
comment on column steps.cached_tokens is 'Input tokens that the provider had in its cache.';
comment on column steps.reasoning_tokens is 'Output tokens that the model spent on reasoning.';

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

comment on table tool_calls is 'One row per tool call that a model proposed. The schema views adds the column result, the result of the call.';
comment on column tool_calls.tenant is 'Tenant that the thread belongs to.';
comment on column tool_calls.thread is 'Id of the thread.';
comment on column tool_calls.call is 'Name of the call: turn.step.index, such as 3.1.0. To look a call up, name the three numbers: they are the key.';
comment on column tool_calls.turn is 'Number of the turn that proposed the call.';
comment on column tool_calls.step is 'Number of the step that proposed the call.';
comment on column tool_calls.index is 'Number of the call within the step, from 0.';
comment on column tool_calls.tool is 'Name of the tool.';
comment on column tool_calls.args is 'Arguments in force. An approver may have edited them.';
comment on column tool_calls.malformed is 'Arguments as the model wrote them, if they are not a JSON object; null otherwise.';
comment on column tool_calls.call_hash is 'Hash of the tool and the arguments in force. An approval holds for this hash alone.';
comment on column tool_calls.status is 'proposed, waiting, approved, dispatched, running, repeatable, unknown or settled.';
comment on column tool_calls.outcome is 'succeeded, failed, timed_out, cancelled, denied, expired, not_started or abandoned; null until the call is settled.';
comment on column tool_calls.effect is 'pure, idempotent, reconcilable or unsafe, as the last dispatch declares the tool.';
comment on column tool_calls.pool is 'Pool of executors that may claim the call.';
comment on column tool_calls.proposed_seq is 'Seq of the answer that proposes the call.';
comment on column tool_calls.proposed_at is 'When the call was proposed.';
comment on column tool_calls.approval_reason is 'Why a person is asked for an approval.';
comment on column tool_calls.approval_requested_at is 'When a person was asked.';
comment on column tool_calls.approval_expires_at is 'When the request for approval expires.';
comment on column tool_calls.decision is 'approved, edited, denied or expired; null until it is decided.';
comment on column tool_calls.decided_by is 'Actor who decided: user:…, policy:… or service:….';
comment on column tool_calls.decided_at is 'When it was decided.';
comment on column tool_calls.decision_reason is 'Why the call was denied.';
comment on column tool_calls.attempts is 'Number of times that the call was dispatched.';
comment on column tool_calls.lost_attempts is 'Number of claimed attempts whose end nobody saw.';
comment on column tool_calls.dispatched_at is 'When the latest attempt was given to the executors.';
comment on column tool_calls.deadline_at is 'When the latest attempt is given up if no executor claims it or, in a pool without executors, nobody answers it.';
comment on column tool_calls.timeout_ms is 'Milliseconds that the tool may run.';
comment on column tool_calls.idempotency_key is 'Key that the tool gets, so that it can recognise a repetition.';
comment on column tool_calls.claim is 'Event id of the last claim that won.';
comment on column tool_calls.executor is 'Executor that claimed the call last.';
comment on column tool_calls.started_at is 'When the latest claim was made.';
comment on column tool_calls.lease_seconds is 'Seconds that the claim holds without a sign of life.';
comment on column tool_calls.evidence is 'Why the last lost attempt counts as lost.';
comment on column tool_calls.resolution is 'Answer of a person or of the downstream system about an unknown call: succeeded, failed, again or abandoned.';
comment on column tool_calls.resolved_by is 'Actor who gave the answer about the unknown call.';
comment on column tool_calls.note is 'Note that came with the answer.';
comment on column tool_calls.milliseconds is 'Milliseconds that the tool ran, as its executor measured them.';
comment on column tool_calls.changes is 'Files that the call changed.';
comment on column tool_calls.artifacts is 'Artifacts that the tool made: sha256, size, media_type and name of each.';
comment on column tool_calls.settled_seq is 'Seq of the record that settled the call. The result is the item of that record.';
comment on column tool_calls.settled_at is 'When the call was settled.';
comment on column tool_calls.settled_by is 'Event id of the record that settled the call.';
comment on column tool_calls.resolved_at is 'When the call was last resolved.';

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
-- Inputs in the order of their arrival, by their ids, and in the order in which they were taken. If most threads are so
-- short that any of these indexes would do, the planner takes the last one that fits. Long threads depend on this order of
-- the statements, and a test checks the plans.
create index items_inputs on items (tenant, thread, seq) where input is not null;
create index items_by_input on items (tenant, thread, input) where input is not null;
create index items_taken on items (tenant, thread, place) where input is not null and dropped is null;
create index items_summaries on items (tenant, thread, seq) where kind = 'summary';

comment on table items is 'The conversation: messages, reasoning, calls, results and summaries. The model is shown the items that have a place and are neither dropped nor rewound nor compacted: the summary first, then by place, seq and part.';
comment on column items.tenant is 'Tenant that the thread belongs to.';
comment on column items.thread is 'Id of the thread.';
comment on column items.seq is 'Seq of the record that brought the item.';
comment on column items.part is 'Number of the item within its record, from 0.';
comment on column items.kind is 'message, reasoning, tool_call, tool_result, resolution or summary.';
comment on column items.turn is 'Number of the turn. Null for a message that waits; for a summary, the last turn that it may cover.';
comment on column items.step is 'Number of the step. Null for inputs that started a turn, and for a summary.';
comment on column items.place is 'Seq of the record that put the item into the context; null for a message that waits.';
comment on column items.content is 'Content as the model is shown it.';
comment on column items.digest is 'sha256 that identifies the item''s content.';
comment on column items.input is 'Id of the input, if the item is a user''s message.';
comment on column items.call is 'Name of the tool call, if the item is a call or its result.';
comment on column items.dropped is 'Kind of the event that withdrew or discarded a waiting message.';
comment on column items.rewound_at is 'Seq of the rewind that removed the item from the context.';
comment on column items.compacted_at is 'Seq of the summary that replaces the item. It becomes null again if a rewind removes that summary.';

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

comment on table plans is 'One row per version of a thread''s plan.';
comment on column plans.tenant is 'Tenant that the thread belongs to.';
comment on column plans.thread is 'Id of the thread whose plan it is.';
comment on column plans.version is 'Number of the version, from 1, in the order of the proposals.';
comment on column plans.status is 'waiting (for an answer), in_force, rejected, or superseded (another version replaced it).';
comment on column plans.tasks is 'Tasks as proposed: id, title, depends_on and, if there are any, instructions of each.';
comment on column plans.proposed_seq is 'Seq of the proposal.';
comment on column plans.proposed_at is 'When the version was proposed.';
comment on column plans.proposed_by is 'Actor who proposed the version.';
comment on column plans.call is 'Tool call that proposed the version; its result reports the decision. Null if a person or a backend proposed it.';
comment on column plans.decided_seq is 'Seq of the answer.';
comment on column plans.decided_at is 'When the version was approved or rejected.';
comment on column plans.decided_by is 'Actor who approved or rejected the version.';
comment on column plans.decision_reason is 'Why the version was rejected.';
comment on column plans.superseded_seq is 'Seq of the record that replaced this version by another.';
comment on column plans.superseded_at is 'When another version replaced this one.';

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

comment on table tasks is 'One row per task and version of a plan that was in force. A task that the next version keeps continues in a row of its own.';
comment on column tasks.tenant is 'Tenant that the thread belongs to.';
comment on column tasks.thread is 'Id of the thread whose plan it is.';
comment on column tasks.version is 'Version of the plan.';
comment on column tasks.task is 'Id of the task, the same in every version that keeps it.';
comment on column tasks.place is 'Position of the task in the plan, from 0.';
comment on column tasks.title is 'Title, for people.';
comment on column tasks.instructions is 'Instructions, for whoever does the task.';
comment on column tasks.depends_on is 'Ids of the tasks that must succeed first.';
comment on column tasks.left_out is 'Whether the version does not name the task: it was running when the version took force, and is being stopped.';
comment on column tasks.status is 'pending, running, succeeded, failed or cancelled; continued if the next version keeps the task.';
comment on column tasks.child is 'Thread that does the task; null if there is none.';
comment on column tasks.result is 'Result of the task. A version that keeps a finished task shows the result too.';
comment on column tasks.changed_seq is 'Seq of the last record that changed the row.';
comment on column tasks.started_at is 'When the task started, in the version in which it did.';
comment on column tasks.ended_at is 'When the task ended, in the version in which it did.';

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
-- The last change of a file, by the beginning of its path: a whole path may be longer than an entry of an index can be.
create index artifacts_of_files on artifacts (tenant, thread, left(name, 200), seq) where kind in ('before', 'after');

comment on table artifacts is 'One row for each time that a record names an artifact, whatever the record''s effect. The bytes are stored once per content.';
comment on column artifacts.tenant is 'Tenant that the thread belongs to.';
comment on column artifacts.thread is 'Id of the thread that names the artifact.';
comment on column artifacts.seq is 'Seq of the record that names the artifact.';
comment on column artifacts.part is 'Number of the artifact within its record, from 0.';
comment on column artifacts.kind is 'recorded; input; tool_call (part of a call''s result); before or after (content of a file before and after a call changed it); skill.';
comment on column artifacts.effect is 'Effect of the record: applied, duplicate, superseded, rejected or ignored.';
comment on column artifacts.call is 'Tool call that made the artifact.';
comment on column artifacts.sha256 is 'sha256 of the content.';
comment on column artifacts.size is 'Size in bytes, if the record says it.';
comment on column artifacts.media_type is 'Media type that the producer names, if the record says it.';
comment on column artifacts.name is 'Name that the producer gives; for a file its path, for a skill its name.';
comment on column artifacts.at is 'When the record named the artifact.';

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

comment on table usage is 'One row per model response and thread. A response that lost its race has a row too, because it was paid for. The schema views adds the column counted: count only those rows.';
comment on column usage.tenant is 'Tenant that pays.';
comment on column usage.thread is 'Id of the thread that recorded the response.';
comment on column usage.seq is 'Seq of the record that brought the response.';
comment on column usage.kind is 'step or compaction.';
comment on column usage.effect is 'applied; superseded if another answer won.';
comment on column usage.turn is 'Number of the turn; null for a compaction between turns.';
comment on column usage.step is 'Number of the step; null for a compaction.';
comment on column usage.attempt is 'Attempt of the step that got the response; null for a compaction.';
comment on column usage.model is 'Model of the configuration in force.';
comment on column usage.response_id is 'Id that the provider gave the response; null if it gave none.';
comment on column usage.at is 'When the response was recorded.';
comment on column usage.input_tokens is 'Input tokens, as the provider counted them.';
comment on column usage.output_tokens is 'Output tokens, as the provider counted them.';
comment on column usage.cached_tokens is 'Input tokens that the provider had in its cache.';
comment on column usage.reasoning_tokens is 'Output tokens that the model spent on reasoning.';

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
-- The configurations of a thread: a fork of an earlier seq takes those that were in force there.
create index events_configurations on events (tenant, thread, seq) where type in ('thread.created', 'thread.configured') and effect = 'applied';
-- Records that an import looks for in the thread that it continues.
create index events_of_imports on events (tenant, thread, seq) where type in ('thread.rewound', 'artifact.recorded') and effect = 'applied';
-- Reads a partition by offset: after a crash the relay publishes effects from these rows. Rows are stored nearly in this
-- order, so a small block-range index is enough.
create index events_positions on events using brin ("offset") with (pages_per_range = 16, autosummarize = on);
-- Finds client commands that the state no longer remembers. A query uses this index only if it repeats the condition.
create index events_commands on events (tenant, thread, id) where actor like 'user:%';

comment on table events is 'The log by thread and seq, with the effect of each record.';
comment on column events.tenant is 'Tenant that the thread belongs to.';
comment on column events.thread is 'Id of the thread, unique within the tenant.';
comment on column events.seq is 'Number of the record within its thread, from 1 without gaps.';
comment on column events."partition" is 'Partition of thread-events that holds the thread''s records.';
comment on column events."offset" is 'Offset of the record in its partition. It orders the records of a partition.';
comment on column events.id is 'Event id. A record without effect may share its id with one that took effect.';
comment on column events.type is 'Type of the event, such as tool_call.finished. If the type is not known, the whole CloudEvents type.';
comment on column events.time is 'Time that the producer wrote. If that cannot be read, the broker''s time.';
comment on column events.actor is 'Actor: user:…, service:…, policy:… or import:….';
comment on column events.source is 'Service and instance that appended the record.';
comment on column events.cause is 'Id of the event that led to this one.';
comment on column events.data_hash is 'sha256 of the value''s bytes.';
comment on column events.chain is 'Hash chain of the thread up to this record.';
comment on column events.effect is 'applied, duplicate, superseded, rejected or ignored.';
comment on column events.reason is 'Why the record is not applied; null if it is.';
comment on column events.data is 'Value of the record; null if it cannot be decoded or stored.';
comment on column events.facts is 'Numbers and names for counting, one key each; null if the record has none. The keys are listed below, under facts.';

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

comment on table dead_letters is 'Records that could not be decoded or stored. They are also on the topic thread-events-dlq.';
comment on column dead_letters.topic is 'Topic of the record.';
comment on column dead_letters."partition" is 'Partition of the record.';
comment on column dead_letters."offset" is 'Offset of the record.';
comment on column dead_letters.tenant is 'Tenant of the record; null if the key cannot be read.';
comment on column dead_letters.thread is 'Thread of the record; null if the key cannot be read.';
comment on column dead_letters.seq is 'Seq of the record in its thread, if it has one.';
comment on column dead_letters.reason is 'What is wrong, in words.';
comment on column dead_letters.at is 'Time that the broker gave the record.';
comment on column dead_letters.key is 'Key of the record: its first bytes, up to a limit.';
comment on column dead_letters.headers is 'Headers as pairs of name and value. Bytes that are no text are replaced.';
comment on column dead_letters.value is 'Value of the record: its first bytes, up to a limit.';
comment on column dead_letters.value_bytes is 'Length of the whole value in bytes.';
comment on column dead_letters.fault is 'Class of what is wrong: one of the classes that docs/operations.md lists.';

-- A thread has one tenant. Without these statistics the planner takes the two columns for independent and expects one row
-- per thread at most. Any index that begins with them then looks as good to it as the index with the whole key.
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

comment on view tool_calls_with_results is 'The table tool_calls with the result of each call.';
comment on column tool_calls_with_results.result is 'Result of the call as the model is shown it; null until the call is settled.';

-- One response may have several rows: a thread that was imported from a copy repeats responses of another thread, and an
-- import of a longer snapshot repeats those of an earlier one, which may have ended in the middle of a response. Of the
-- rows of one response, the one with the most tokens counts; among equals the earliest; at the same time the one whose
-- thread id comes first. The choice does not depend on the order in which the records were read.
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

comment on view usage_counted is 'The table usage, with the rows marked that count.';
comment on column usage_counted.counted is 'Whether the tokens count in this row. A response that several threads have, because one is a copy of the other, counts in one row only: the one with the most tokens and, among equals, the earliest.';

create view approvals as
select tenant, thread, call, turn, step, index, tool, args, call_hash, effect,
    approval_reason as reason, approval_requested_at as requested_at, approval_expires_at as expires_at
from tool_calls
where status = 'waiting';

comment on view approvals is 'Tool calls that wait for a person''s approval.';
comment on column approvals.reason is 'Why a person is asked for an approval.';
comment on column approvals.requested_at is 'When a person was asked.';
comment on column approvals.expires_at is 'When the request for approval expires.';

create view unknown_calls as
select tenant, thread, call, turn, step, index, tool, args, call_hash, effect, pool, attempts, executor, started_at, evidence
from tool_calls
where status = 'unknown';

comment on view unknown_calls is 'Calls whose outcome is unknown: they may or may not have run. A person has to resolve them.';

-- A column that a view takes unchanged from a table gets the comment that it has in the table.
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
