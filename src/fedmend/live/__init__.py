"""A run while it goes on: what it tells, and the page that shows it on this machine."""

from fedmend.live.state import LIVE_FILE, LiveListener, LiveState, read_live
from fedmend.live.watching import WatchServer

__all__ = ["LIVE_FILE", "LiveListener", "LiveState", "WatchServer", "read_live"]
