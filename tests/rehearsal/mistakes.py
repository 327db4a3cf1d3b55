"""Mistakes that only a rehearsal notices: what a GPU forbids, and processors do not mind."""

from dataclasses import dataclass

from tests.mutants.mutant import Mutant


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, and the failure by which a rehearsal notices it."""

    mutant: Mutant
    rehearsal: str
    failure: str


ENDS_WITH_AN_ERROR = "ends with an error"
TRANSPORT = "executor/transport/torch_distributed.py"
MISTAKES = (
    Mistake(
        Mutant("experiment/rank/devices.py", "        torch.cuda.set_device(moment.device)\n", "",
               "the thread that looks at progress makes a context on the first GPU", ()),
        "2 stages", "foreign context",
    ),
    Mistake(
        Mutant(TRANSPORT, "for payload, group in self._groups.items():",
               "for payload, group in list(self._groups.items())[:1]:",
               "the second direction of a pair connects in iteration 0", ()),
        "4 stages", ENDS_WITH_AN_ERROR,
    ),
    Mistake(
        Mutant("experiment/rank/channels.py", "        collectives.gather_shares(numbers)\n", "",
               "the sharing of weights connects in iteration 0", ()),
        "2 replicas, ZeRO", "late communicator",
    ),
    Mistake(
        Mutant(TRANSPORT, "        _wait(work)\n        return tensor\n", "        return tensor\n",
               "an activation is read before it has arrived", ()),
        "2 stages", "race",
    ),
    Mistake(
        Mutant(TRANSPORT, "in_use = {buffer for _, buffer in self._sends.values()}",
               "in_use: set[int] = set()", "a buffer is overwritten while it is sent", ()),
        "2 stages", "race",
    ),
    Mistake(
        Mutant("training/module_stage.py", "self._loss += output.detach()\n",
               "self._loss += output.item()\n", "every micro-batch waits for its loss", ()),
        "one rank", "host waits in an iteration",
    ),
    Mistake(
        Mutant("experiment/rank/devices.py",
               "reserved_bytes(config.cluster.device_memory_bytes)", "1 << 20",
               "memory is taken bit by bit", ()),
        "one rank", "allocation after memory was reserved",
    ),
    Mistake(
        Mutant("training/overlapped_reduce.py", "            wait()\n", "            pass\n",
               "weights are updated before gradients are summed", ()),
        "2 replicas", "race",
    ),
)  # fmt: skip
