"""From a kept recording and living objects to a capsule, and from a capsule back into a run."""
