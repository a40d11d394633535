"""Look at any model: what it is called with, which tokens its attentions read, what it answered, and why."""

from pellucid.looking.answers import Target
from pellucid.looking.faithful import text_faithfulness
from pellucid.looking.feeding import Question, Reader
from pellucid.looking.methods import ALL_METHODS, explain
from pellucid.looking.passage import Passage
from pellucid.looking.tracing import trace

__all__ = ["ALL_METHODS", "Passage", "Question", "Reader", "Target", "explain", "text_faithfulness", "trace"]
