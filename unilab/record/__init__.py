"""What a run writes down while it trains, and what a person sees of it."""

from unilab.record.metrics_file import read_metrics
from unilab.record.recorder import Recorder
from unilab.record.status import read_status

__all__ = ["Recorder", "read_metrics", "read_status"]
