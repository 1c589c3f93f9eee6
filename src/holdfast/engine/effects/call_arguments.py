"""Holds the arguments of the calls of one visit until their records are written."""

from __future__ import annotations

from typing import Any

from holdfast.engine.effects.argument_recorder import named_arguments, prompt_arguments
from holdfast.engine.effects.call_host import CallHost, CallRequest
from holdfast.engine.effects.conversations import Conversations, Prompt
from holdfast.model.arguments import Recorded

__all__ = ["CallArguments"]


class CallArguments:
    """The arguments of the calls of one visit that are being made, ready to be recorded."""

    def __init__(self, host: CallHost) -> None:
        self._host = host
        self._recorded: dict[str, Recorded] = {}
        self._conversations = Conversations()
        self._prompts: dict[str, Prompt] = {}

    def prepare(self, call: str, request: CallRequest) -> None:
        """Copy and redact the arguments of a call that is about to be made: it may change them."""
        recorder = self._host.recorder
        recording = recorder.recording_of(request)
        if recording == "none":
            return
        after = ""
        if request.prompt is None:
            shown = named_arguments(request.tool, request.args, request.kwargs)
        else:
            prompt = self._conversations.prompt_of(request.prompt.messages)
            self._prompts[call] = prompt
            after, shown = prompt.after, prompt_arguments(request.prompt, prompt.new)
        recorded = recorder.recorded(recording, shown, call=call, after=after, run=self._host.run)
        if recorded is not None:
            self._recorded[call] = recorded

    def recorded(self, call: str) -> Recorded | None:
        """Return the prepared arguments of a call; None if none are recorded."""
        return self._recorded.get(call)

    def discard(self, call: str) -> None:
        """Forget the arguments of a call that is no longer being made."""
        self._recorded.pop(call, None)

    def note_answer(self, call: str, request: CallRequest, result: Any) -> None:
        """Note the answer of a model, which a later prompt of the visit may continue."""
        if request.prompt is None or self._host.recorder.recording_of(request) == "none":
            return
        prompt = self._prompts.pop(call, None)
        if prompt is None:  # its record answered
            prompt = self._conversations.prompt_of(request.prompt.messages)
        self._conversations.add_answer(call, prompt, result)
