"""DP-SGD: rows a second against Opacus, and against the same kernel without clipping and noise.

Opacus trains with hooks, its flat clipping and its own Poisson loader; sites one after the other, each made ready
outside the clock. Both sides take the same number of SGD steps with the same expected batch, noise multiplier and clip,
and their clipped gradients must agree before they are timed. kohort draws its keys' streams, batches and noise inside
the clock.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np

from bench.harness import Row, best_of
from kohort.models.dense.network import Network
from kohort.models.dense.training import Training, fit_many
from kohort.models.dp_sgd.fit import PrivateSteps, clipped_sums, fit_private
from kohort.models.rows import Rows, StackedRows, stack

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "dp"
SUMMARY = (
    "DP-SGD (clip 1, noise multiplier 1, Poisson batches), rows trained on in a second of processor time, one thread: "
    "against Opacus (hooks, its own Poisson loader, its fast generator rather than a secure one) and against the same "
    "kernel without clipping and noise. Best of several runs."
)

NETWORKS = {
    "linear 58-2": Network(inputs=58, outputs=2),
    "MLP 12-12-2": Network(inputs=12, hidden=(12,), outputs=2),
    "MLP 54-64-64-7": Network(inputs=54, hidden=(64, 64), outputs=7),
}
CLIP, SIGMA, RATE = 1.0, 1.0, 0.05
ONE_SITE_ROWS, ONE_SITE_BATCHES = 4096, (64, 256)
SITES, SITE_ROWS, SITE_BATCH = 75, 1280, 64
ONE_SITE_TARGET, MANY_SITES_TARGET, PLAIN_TARGET = 10.0, 20.0, 0.45


def measure() -> list[Row]:
    rows = []
    for name, network in NETWORKS.items():
        for sites, count, batch in (
            *((1, ONE_SITE_ROWS, batch) for batch in ONE_SITE_BATCHES),
            (SITES, SITE_ROWS, SITE_BATCH),
        ):
            rows += _compare(name, network, sites=sites, count=count, batch=batch)
    # Peers in one block each, as the targets are.
    return sorted(rows, key=lambda row: row.peer != "Opacus")


def _compare(name: str, network: Network, *, sites: int, count: int, batch: int) -> list[Row]:
    data = _data(network, sites, count)
    start = network.start(np.random.default_rng(1))
    epochs = 4 if sites == 1 else 1
    steps = epochs * count // batch
    trained = sites * steps * batch
    private = PrivateSteps(
        clip=CLIP,
        sigma=np.full(sites, SIGMA),
        rate=np.full(sites, batch / count),
        steps=np.full(sites, steps),
        keys=tuple(hashlib.sha256(site.to_bytes(4, "big")).digest() for site in range(sites)),
    )
    plain = Training(epochs=epochs, batch=batch, optimizer="sgd", lr=RATE)
    keys = np.arange(sites, dtype=np.uint64)

    def ours() -> float:
        return _seconds(lambda: fit_private(network, start, data, training=plain, private=private))

    def bare() -> float:
        return _seconds(lambda: fit_many(network, start, data, training=plain, keys=keys, round=0))

    ours(), bare()  # compiles
    # Taken in turns, so that a busy machine slows both alike.
    pairs = [(ours(), bare()) for _ in range(40)]
    own_speed, bare_speed = (trained / min(times) for times in zip(*pairs, strict=True))
    peer_speed = _opacus_speed(network, start, data, steps=steps, batch=batch, repetitions=5 if sites == 1 else 2)
    setting = f"{name}, batch {batch}, " + ("1 site" if sites == 1 else f"{sites} sites stacked")
    target = ONE_SITE_TARGET if sites == 1 else MANY_SITES_TARGET
    return [
        _row(setting, own_speed, "Opacus", peer_speed, target),
        _row(setting, own_speed, "kernel without clipping and noise", bare_speed, PLAIN_TARGET),
    ]


def _row(setting: str, ours: float, peer: str, theirs: float | None, target: float) -> Row:
    ratio = None if theirs is None else ours / theirs
    return Row(setting=setting, ours=ours, peer=peer, peer_value=theirs, unit="rows/s", ratio=ratio, target=target)


def _data(network: Network, sites: int, count: int) -> StackedRows:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(sites * count, network.inputs)).astype(np.float32)
    y = generator.integers(0, network.outputs, sites * count).astype(np.float32)
    table = Rows(x, y)
    return stack([table.part(site * count, (site + 1) * count) for site in range(sites)])


def _seconds(work: Callable[[], Any]) -> float:
    """Processor time: both sides are pinned to one thread and wait for nothing, so another program takes none of it."""
    begin = process_time()
    work()
    return process_time() - begin


def _opacus_speed(
    network: Network, start: np.ndarray, data: StackedRows, *, steps: int, batch: int, repetitions: int
) -> float | None:
    """Expected rows a second over all sites; None when Opacus is not installed."""
    try:
        import torch
        from opacus import PrivacyEngine
    except ImportError:
        return None
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="(Full backward hook is firing|Secure RNG turned off)")
    _require_same_clipping(network, start, data.site(0).part(0, 200))

    def run(site: int) -> float:
        rows = data.site(site)
        table = torch.utils.data.TensorDataset(torch.from_numpy(rows.x), torch.from_numpy(rows.y).long())
        module = _torch_twin(network, start)
        module, optimizer, loader = PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=RATE),
            data_loader=torch.utils.data.DataLoader(table, batch_size=batch),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
        )
        cost = torch.nn.CrossEntropyLoss()

        def train() -> None:
            left = steps
            while left:
                for x, y in loader:
                    optimizer.zero_grad()
                    cost(module(x), y).backward()
                    optimizer.step()
                    left -= 1
                    if not left:
                        break

        return _seconds(train)

    run(0)  # first use of each operation, outside the clock
    seconds = best_of(repetitions, lambda: sum(run(site) for site in range(data.sites)))
    return data.sites * steps * batch / seconds


def _torch_twin(network: Network, start: np.ndarray) -> Any:
    import torch

    parts: list[Any] = []
    for matrix, bias in network.layers(start):
        linear = torch.nn.Linear(*matrix.shape)
        linear.weight.data = torch.from_numpy(matrix.T.copy())
        linear.bias.data = torch.from_numpy(bias.copy())
        parts += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def _require_same_clipping(network: Network, start: np.ndarray, rows: Rows) -> None:
    """One step of Opacus without noise moves the weights by the mean of the clipped gradients: ours, or no figure."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(_torch_twin(network, start))
    plain = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer = DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=CLIP, expected_batch_size=rows.count)
    torch.nn.CrossEntropyLoss()(module(torch.from_numpy(rows.x)), torch.from_numpy(rows.y).long()).backward()
    optimizer.step()
    after = [parameter.detach().numpy() for parameter in module.parameters()]
    layers = [(weight.T, bias) for weight, bias in zip(after[::2], after[1::2], strict=True)]
    theirs = start - network.flatten(layers)
    difference = float(np.abs(clipped_sums(network, start, stack([rows]), clip=CLIP)[0] / rows.count - theirs).max())
    if difference > 1e-5:
        raise AssertionError(f"clipped gradients differ by {difference}")
