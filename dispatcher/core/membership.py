"""Instances that come, say how they are, fall out and leave."""

from __future__ import annotations

from dispatcher.core import events as ev
from dispatcher.core.fleet import Fleet
from dispatcher.core.instance import Instance
from dispatcher.core.placing import Placing


class Membership:
    """Carries out what happens to instances. Only the coordinator calls it."""

    def __init__(self, fleet: Fleet, placing: Placing) -> None:
        self._fleet = fleet
        self._placing = placing

    def up(self, event: ev.InstanceUp) -> None:
        """New, back, or serving other things than before."""
        instance = self._fleet.join(event.spec)
        instance.up = True
        instance.draining = instance.removing = False
        self._placing.joined(instance)

    def observed(self, event: ev.InstanceObserved) -> None:
        """What its metrics say; seats that are found by themselves follow."""
        instance = self._fleet.get(event.instance_id)
        instance.gauges = event.gauges
        self._fleet.assume_progress(instance)
        if instance.controller is None:
            return
        tokens_total = event.gauges.output_tokens_total
        before = instance.seats
        seats = instance.controller.observe(
            self._fleet.now_s,
            event.gauges,
            in_use=instance.seats_in_use,
            backlog=instance.queued > 0 or self._placing.held > 0,
            tokens_total=instance.tokens_total if tokens_total is None else tokens_total,
        )
        if seats != before:
            instance.load_changed()
        if seats > before:
            self._placing.touch(instance)

    def down(self, event: ev.InstanceDown) -> None:
        """It fails; its queue goes elsewhere."""
        instance = self._fleet.get(event.instance_id)
        instance.up = False
        self._fleet.sessions.emptied(instance.instance_id)
        self._fleet.changed()
        self._placing.lost(instance)

    def draining(self, event: ev.InstanceDraining) -> None:
        """Nothing new goes there; with `remove`, it leaves when what runs has ended."""
        instance = self._fleet.get(event.instance_id)
        instance.draining = True
        instance.removing = instance.removing or event.remove
        self._fleet.changed()
        self._placing.lost(instance)
        self.leave_when_empty(instance)

    def leave_when_empty(self, instance: Instance) -> None:
        """An instance that is to go, goes with its last attempt."""
        if instance.removing and not instance.attempts:
            self._fleet.leave(instance)
            self._placing.left(instance)
