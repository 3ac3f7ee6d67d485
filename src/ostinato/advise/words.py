"""An answer in a few lines for people."""

from __future__ import annotations

from ostinato.advise.answer import Answer, Standing, is_eligible, is_too_slow, worse_by
from ostinato.experiments.inference import judge

_MOST_IMPORTANT = 3


def findings(answer: Answer, recipe: str) -> list[str]:
    """Return what is advised, what it beat by how much, its equals, what mattered, and what one more hour would decide.

    Args:
        recipe: path of the recommended recipe.
    """
    best, lines = answer.best, []
    if not answer.is_complete:
        lines.append("the last stage was not finished: what follows is what the search had found by then")
    seeds = f"{len(best.scores)} seed{'s' if len(best.scores) > 1 else ''}"
    lines.append(
        f"advised: {best.name}: {answer.metric} {best.mean:.4g} after {best.updates:,} updates ({seeds}), rate "
        f"x {best.rate:g} of the recipe's; {recipe}"
    )
    if best.expected is not None and best.expected.update > best.updates:
        expected = best.expected
        lines.append(
            f"expected after {expected.update:,} updates: {expected.mean:.4g} (meant as 90 %: {expected.low:.4g} to "
            f"{expected.high:.4g})"
        )
    if (base := answer.base) is not None and base.name != best.name:
        lines.append(_against(answer, base))
    others = [one for one in answer.standings[1:] if one is not base]
    rival = next((one for one in others if is_eligible(one, answer.limits)), None)
    if rival is not None:
        lines.append(_against(answer, rival))
    if equals := answer.equals:
        names = "; ".join(one.name for one in [best, *equals])
        tested = "one seed: nothing was tested" if len(best.scores) == 1 else f"{seeds}, corrected for all pairs"
        lines.append(f"these {len(equals) + 1} could not be told apart ({tested}): {names}")
        cheapest = answer.cheapest_equal()
        lines.append(f"of them the fewest multiply-accumulates: {cheapest.name} ({cheapest.figures['macs']:,.0f})")
    if answer.importance:
        named = [f"{one.axis} ({100 * one.share:.0f} %: {one.best})" for one in answer.importance[:_MOST_IMPORTANT]]
        lines.append(f"what mattered most in the first stage: {', '.join(named)}")
    lines += [f"beware: {warning}" for warning in answer.warnings]
    if answer.one_more_hour:
        lines.append(f"one more hour would decide: {answer.one_more_hour}")
    return lines


def _against(answer: Answer, other: Standing) -> str:
    """Return how much the best beats another, seed by seed, with the interval where there is one."""
    sample = worse_by(other, answer.best, answer.mode)
    if not sample or (other.stage, other.updates) != (answer.best.stage, answer.best.updates):
        score = "no score" if other.mean is None else f"{answer.metric} {other.mean:.4g}"
        return f"{other.name} came as far as stage {other.stage + 1} ({other.updates:,} updates, {score})"
    judged = judge(sample, (0.0, None))
    if judged.low is not None and judged.high is not None:
        low, high = (judged.low, judged.high) if judged.value >= 0 else (-judged.high, -judged.low)
        interval = f"95 %: {low:.4g} to {high:.4g}"
    else:
        interval = "no interval: " + ("one seed" if len(sample) == 1 else f"the same at all {len(sample)} seeds")
    if judged.value >= 0:
        return f"better than {other.name} by {judged.value:.4g} ({interval})"
    why = "is behind once what seeds do is taken away"
    if other.n_failed:
        why = f"{other.n_failed} of its seeds failed"
    elif is_too_slow(other, answer.limits):
        why = "is slower than asked"
    return f"{other.name} is better by {-judged.value:.4g} ({interval}), but {why}"
