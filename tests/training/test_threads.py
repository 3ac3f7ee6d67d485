"""How many CPU threads torch uses, where several trainings are at work in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from ostinato.training.threads import cpu_threads


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_number_of_threads_is_what_it_was_when_all_have_left(order: tuple[int, int]) -> None:
    def in_another_thread() -> int:
        with ThreadPoolExecutor(1) as new:
            return new.submit(torch.get_num_threads).result()

    with cpu_threads(3):
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ExitStack() as first, ExitStack() as second:
            threads, inside = (one, other), (first, second)
            for thread, stack in zip(threads, inside, strict=True):
                thread.submit(stack.enter_context, cpu_threads(1)).result()
                assert thread.submit(torch.get_num_threads).result() == 1
            for number in order:
                threads[number].submit(inside[number].close).result()
            assert in_another_thread() == 3
        with cpu_threads(2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 3
