"""Reads an event file of our writer with the tensorboard package.

usage: check_tensorboard.py FOLDER
Expects in FOLDER one event file as reference_readers_test.cpp writes it.
Exit code 77: the package is missing.
"""

import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing import event_file_loader
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import os


def main(folder):
    names = [name for name in os.listdir(folder) if ".tfevents." in name]
    assert len(names) == 1, names

    # Record by record, as the file holds them.
    events = list(event_file_loader.LegacyEventFileLoader(os.path.join(folder, names[0])).Load())
    assert events[0].file_version == "brain.Event:2"
    assert [event.step for event in events] == [0, 1, 2, 3, 2, 2, 3], [event.step for event in events]
    assert events[4].session_log.status == events[4].session_log.START
    assert all(event.wall_time == 1700000000.5 for event in events)

    # As TensorBoard shows them: what was logged before the restart for its step and later is gone.
    accumulator = EventAccumulator(folder)
    accumulator.Reload()
    assert sorted(accumulator.Tags()["scalars"]) == ["loss", "rate"], accumulator.Tags()
    loss = [(event.step, event.value) for event in accumulator.Scalars("loss")]
    assert loss == [(1, 4.0), (2, 2.5), (3, 2.25)], loss
    assert [event.step for event in accumulator.Scalars("rate")] == [1, 2, 3]


main(sys.argv[1])
