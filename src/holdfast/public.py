"""Every public name of `holdfast`. They are imported together, when the first one is used."""

from holdfast.access.api_keys import ApiKeys
from holdfast.app import Holdfast
from holdfast.documents.checksums import Checksum
from holdfast.documents.documents import Documents
from holdfast.documents.file_parts import Chunks
from holdfast.documents.files import DocumentFiles
from holdfast.documents.pipelines import PipelineDocuments, PipelineHost, start_pipelines
from holdfast.documents.projects import Projects
from holdfast.documents.search import SegmentSearch
from holdfast.documents.search_opening import SearchChoice
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.documents.uploads import DocumentUploads
from holdfast.engine.client.map_handle import MapHandle
from holdfast.engine.effects.argument_recorder import Redact
from holdfast.engine.effects.call_options import BlockingCaller, Caller
from holdfast.engine.effects.invocations import OnExhausted
from holdfast.engine.effects.savings import Saved
from holdfast.engine.execution.agents import (
    Agent,
    ApprovalGrouping,
    Conversation,
    QuestionOptions,
    agent,
)
from holdfast.engine.execution.blocking_context import BlockingChild, BlockingContext
from holdfast.engine.execution.child import Child
from holdfast.engine.execution.conditions import ChildCondition
from holdfast.engine.execution.context import Context
from holdfast.engine.execution.mapped_results import BlockingMapResults, MapResults
from holdfast.engine.history.run_stream import RunStream
from holdfast.engine.kernel.telemetry import RunSpan, SpanKind, SpanValue, Telemetry
from holdfast.engine.worker.health import WorkerHealth
from holdfast.engine.worker.options import WorkerKeywords, WorkerOptions
from holdfast.engine.worker.worker import Worker
from holdfast.fleet.diagnosis import StoreFacts
from holdfast.fleet.fleet import Fleet
from holdfast.graph import (
    END,
    Graph,
    Node,
    Workflow,
    WorkflowDecorator,
    escalate,
    fail,
    restart,
    workflow,
)
from holdfast.graph.approval import Approval, NeedsApproval
from holdfast.graph.chooser_targets import Chooser
from holdfast.graph.items import ItemDecorator
from holdfast.graph.node import Reference
from holdfast.graph.node_decorator import NodeDecorator
from holdfast.graph.tool import UNKNOWN, VOID, Done, ProbeFinding, ProbeVerdict, Tool, done, tool
from holdfast.handle import RunHandle
from holdfast.log_context import RunLogFilter, RunScope
from holdfast.model.api_key import ApiKey, KeyRole, NewKey
from holdfast.model.arguments import Recording
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.conditions import Timer, WaitAnswer, timer
from holdfast.model.document import (
    Document,
    DocumentConnection,
    DocumentKind,
    DocumentPage,
    DocumentPlace,
    DocumentSegment,
    DocumentSegmentPage,
    DocumentStep,
    DocumentWorkflow,
    DocumentWorkflowPage,
    Project,
    ProjectPage,
    StepName,
    StepStatus,
    WorkflowStatus,
)
from holdfast.model.durations import Duration, days, hours, minutes, seconds
from holdfast.model.event import BranchFailed, Failure
from holdfast.model.fleet import (
    CostGroup,
    CostPage,
    FleetOverview,
    GraphEntry,
    PurposeCost,
    RunCount,
    StalledPage,
    StalledRun,
    StallReason,
    WorkerEntry,
)
from holdfast.model.hooks import AttemptFailure, FailureHook, Hooks, RunHook
from holdfast.model.invocation import (
    Answer,
    Emit,
    Model,
    Request,
    StopReason,
    ToolCall,
    ToolSpec,
    Usage,
)
from holdfast.model.map import (
    MapChunk,
    Mapped,
    MappedItem,
    MappedItemPage,
    MapProgress,
    MapStatus,
)
from holdfast.model.moments import Moment
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Durability, OnFailure, OnStale, Pausable, Retry
from holdfast.model.pricing import ModelPrice
from holdfast.model.program import Program
from holdfast.model.progress import BulkProgress, SweepProgress
from holdfast.model.quota import Quota
from holdfast.model.reducers import Reducer
from holdfast.model.review import (
    ActionKind,
    Review,
    ReviewAction,
    ReviewDecision,
    ReviewEntry,
    ReviewOutcome,
    ReviewPage,
    ReviewStatus,
    ReviewVote,
)
from holdfast.model.run import (
    AmbiguousCall,
    HistoryEntry,
    HistoryPage,
    OnBusy,
    Run,
    RunEntry,
    RunPage,
    SessionQueueEntry,
    SetAsideSignal,
    SignalReceipt,
    Status,
    TextPiece,
    WaitPage,
)
from holdfast.model.segment_search import SegmentEntry, SegmentHit
from holdfast.model.service import (
    BulkAction,
    BulkJob,
    BulkJobPage,
    BulkRequest,
    BulkStatus,
    QuotaUsage,
)
from holdfast.model.signals import SignalName, signal
from holdfast.model.spending import Spending
from holdfast.model.upload import StoredFile, Upload, UploadStatus, UploadSweep
from holdfast.model.wait import Wait
from holdfast.model.webhook import (
    DeliveryState,
    NewWebhook,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
)
from holdfast.records.review import NoticeKind
from holdfast.records.run_filter import RunFilter
from holdfast.review.delegation import Delegate
from holdfast.review.links import OpenedLink
from holdfast.review.log_notifier import LogNotifier
from holdfast.review.notice import Notice, Notifier
from holdfast.review.options import ReviewOptions
from holdfast.review.reviews import Reviews
from holdfast.review.smtp_notifier import SmtpNotifier
from holdfast.review.templates import NoticeTemplate
from holdfast.webhooks.callbacks import Callbacks
from holdfast.webhooks.webhooks import Webhooks

__all__ = [
    "END",
    "UNKNOWN",
    "VOID",
    "ActionKind",
    "Agent",
    "AmbiguousCall",
    "Answer",
    "ApiKey",
    "ApiKeys",
    "Approval",
    "ApprovalGrouping",
    "AttemptFailure",
    "BlockingCaller",
    "BlockingChild",
    "BlockingContext",
    "BlockingMapResults",
    "BranchFailed",
    "Budget",
    "BudgetLimits",
    "BulkAction",
    "BulkJob",
    "BulkJobPage",
    "BulkProgress",
    "BulkRequest",
    "BulkStatus",
    "Callbacks",
    "Caller",
    "Checksum",
    "Child",
    "ChildCondition",
    "Chooser",
    "Chunks",
    "Context",
    "Conversation",
    "CostGroup",
    "CostPage",
    "Delegate",
    "DeliveryState",
    "Document",
    "DocumentConnection",
    "DocumentFiles",
    "DocumentKind",
    "DocumentPage",
    "DocumentPlace",
    "DocumentSegment",
    "DocumentSegmentPage",
    "DocumentStep",
    "DocumentUploads",
    "DocumentWorkflow",
    "DocumentWorkflowPage",
    "Documents",
    "Done",
    "Durability",
    "Duration",
    "Emit",
    "Failure",
    "FailureHook",
    "Fleet",
    "FleetOverview",
    "Graph",
    "GraphEntry",
    "HistoryEntry",
    "HistoryPage",
    "Holdfast",
    "Hooks",
    "ItemDecorator",
    "KeyRole",
    "LogNotifier",
    "MapChunk",
    "MapHandle",
    "MapProgress",
    "MapResults",
    "MapStatus",
    "Mapped",
    "MappedItem",
    "MappedItemPage",
    "Model",
    "ModelPrice",
    "Moment",
    "NeedsApproval",
    "NewKey",
    "NewWebhook",
    "Node",
    "NodeDecorator",
    "Notice",
    "NoticeKind",
    "NoticeTemplate",
    "Notifier",
    "OnBusy",
    "OnExhausted",
    "OnFailure",
    "OnStale",
    "OpenedLink",
    "Pausable",
    "PayloadLimits",
    "PipelineDocuments",
    "PipelineHost",
    "ProbeFinding",
    "ProbeVerdict",
    "Program",
    "Project",
    "ProjectPage",
    "Projects",
    "PurposeCost",
    "QuestionOptions",
    "Quota",
    "QuotaUsage",
    "Recording",
    "Redact",
    "Reducer",
    "Reference",
    "Request",
    "Retry",
    "Review",
    "ReviewAction",
    "ReviewDecision",
    "ReviewEntry",
    "ReviewOptions",
    "ReviewOutcome",
    "ReviewPage",
    "ReviewStatus",
    "ReviewVote",
    "Reviews",
    "Run",
    "RunCount",
    "RunEntry",
    "RunFilter",
    "RunHandle",
    "RunHook",
    "RunLogFilter",
    "RunPage",
    "RunScope",
    "RunSpan",
    "RunStream",
    "Saved",
    "SearchChoice",
    "SegmentEntry",
    "SegmentHit",
    "SegmentSearch",
    "SessionQueueEntry",
    "SetAsideSignal",
    "SignalName",
    "SignalReceipt",
    "SmtpNotifier",
    "SpanKind",
    "SpanValue",
    "Spending",
    "SqliteSegmentSearch",
    "StallReason",
    "StalledPage",
    "StalledRun",
    "Status",
    "StepName",
    "StepStatus",
    "StopReason",
    "StoreFacts",
    "StoredFile",
    "SweepProgress",
    "Telemetry",
    "TextPiece",
    "Timer",
    "Tool",
    "ToolCall",
    "ToolSpec",
    "Upload",
    "UploadStatus",
    "UploadSweep",
    "Usage",
    "Wait",
    "WaitAnswer",
    "WaitPage",
    "Webhook",
    "WebhookDelivery",
    "WebhookEvent",
    "Webhooks",
    "Worker",
    "WorkerEntry",
    "WorkerHealth",
    "WorkerKeywords",
    "WorkerOptions",
    "Workflow",
    "WorkflowDecorator",
    "WorkflowStatus",
    "agent",
    "days",
    "done",
    "escalate",
    "fail",
    "hours",
    "minutes",
    "restart",
    "seconds",
    "signal",
    "start_pipelines",
    "timer",
    "tool",
    "workflow",
]
