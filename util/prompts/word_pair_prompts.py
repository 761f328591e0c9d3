"""Prompts of the word-pair tasks, each with corrupted prompts ("donors") of the same layout in tokens.

Bakalova et al., COLM 2025, arXiv 2504.00132, replace what a token reads from others by what it would read in a
corrupted prompt. The six corruptions and every rule of sampling below are our own definitions.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from util.prompts.own_tasks import table
from util.prompts.prompt import (
    Layout,
    Misaligned,
    Prompt,
    Strings,
    TypedTokens,
    UnsupportedTokenizer,
    check_aligned,
    type_tokens,
)
from util.prompts.word_pairs import CORRUPTIONS, LAYOUTS, WordPairTask, fault, find

T = TypeVar("T")
_Parts = tuple[list[tuple[str, str]], str]  # pairs and query of a donor
Sizes = tuple[int, int, int, int]  # tokens of a word by where it stands:
FIRST, LATER, QUERY, OUTPUT = range(4)  # the first input, a later one, the query, an output
OWN, RULE, FOREIGN = "pair", "other rule", "other list"  # where words come from
SHUFFLED = 2
SOURCES = {0: (FOREIGN, FOREIGN), 1: (OWN, OWN), 3: (FOREIGN, OWN), 4: (OWN, FOREIGN), 5: (RULE, RULE)}  # of x, of y
TRIES = 50
HOPELESS = 20  # none of so many prompts: there is none


# ------------------------------------------------------------------------------------------------ words as tokens


class _Word(NamedTuple):
    """A pair, or a word of another list as both input and output (kind None), and its tokens in prompts."""

    x: str
    y: str
    kind: str | None
    rows: frozenset[int]  # where the lists have a word of another list: words of one row are related
    sizes: Sizes
    begins: int  # the first token of y as an answer


_Clean = tuple[Prompt, TypedTokens, list[_Word], _Word]  # a prompt, its tokens, its demonstrations, its query
Count = tuple[Sizes, int] | str  # tokens of a pair, and the first one of its answer; or why it cannot stand in prompts
_counted: WeakKeyDictionary[Any, dict[tuple[int, Layout, str, str], Count]] = WeakKeyDictionary()


def _count(tokenizer: Any, layout: Layout, x: str, y: str) -> Count:
    """The tokens of a pair in prompts, counted once per tokenizer."""
    known, key = _counted.setdefault(tokenizer, {}), (len(tokenizer), layout, x, y)
    if key not in known:
        try:
            tokens = _tokens_of_pair(tokenizer, layout, x, y)
            sizes, answer = tokens.sizes, tokens.ids[tokens.types.index("target")]
            known[key] = (sizes[-11], sizes[-7], sizes[-3], sizes[-5]), answer  # of x t y n x t y n query t target
        except Misaligned as error:
            known[key] = error.reason
    return known[key]


def _tokens_of_pair(tokenizer: Any, layout: Layout, x: str, y: str) -> TypedTokens:
    """The tokens of a prompt that shows a pair twice and asks it. Raises what `type_tokens` raises."""
    return type_tokens(layout.prompt([(x, y), (x, y)], x, y), tokenizer, target=True)


def check_rows(task: WordPairTask, tokenizer: Any) -> None:
    """Raises UnsupportedTokenizer for the first row of a task from a file that cannot stand in prompts."""
    for number, (x, y, _) in enumerate(task.pairs if task.source else (), 1):
        try:
            tokens = _tokens_of_pair(tokenizer, task.layout, x, y)
            words = [token for token, kind in zip(tokens.ids, tokens.types, strict=True) if kind != "bos"]
            why = "its vocabulary lacks a part of them" if tokenizer.unk_token_id in words else ""
        except Misaligned as error:
            why = str(error)
        if why:
            raise UnsupportedTokenizer(
                f"{task.source}, row {number}: the tokenizer cannot carry {x!r} and {y!r} ({why}); take the row out "
                f"or choose another layout ({', '.join(LAYOUTS)})"
            )


def first_tokens(task: WordPairTask, tokenizer: Any) -> dict[str, int]:
    """The first token of each output of a task as an answer; outputs that cannot stand in prompts are left out."""
    counted = [(y, _count(tokenizer, task.layout, x, y)) for x, y, _ in task.pairs]
    return {output: counts[1] for output, counts in counted if not isinstance(counts, str)}


_Listed = tuple[str, frozenset[str], frozenset[int]]  # how a word is written, the lists and the rows that have it


@cache
def _listed(lists: Strings) -> dict[str, _Listed]:
    """The words of lists, case-folded."""
    words: dict[str, _Listed] = {}
    entries = [(name, row) for name in lists for row in table(name)]
    for number, (name, row) in enumerate(entries):
        for word in row.values():
            written, having, rows = words.get(word.casefold(), (word, frozenset(), frozenset()))
            words[word.casefold()] = written, having | {name}, rows | {number}
    return words


class _Stock:
    """What the prompts of a task and their donors are made of, as one tokenizer counts its tokens."""

    def __init__(self, task: WordPairTask, tokenizer: Any, corruptions: Sequence[int]) -> None:
        self.task, self.tokenizer, self.count = task, tokenizer, partial(_count, tokenizer, task.layout)
        self.corruptions = sorted(set(corruptions), key=lambda c: (c == SHUFFLED, c))  # see `clean`
        made = {*corruptions} - {*task.donors}  # of words that the task does not bring
        self.buckets: dict[tuple[str, int, int], list[_Word]] = defaultdict(list)
        self.rejected: Counter[str] = Counter()
        for x, y, kind in task.pairs:
            self._add(OWN, x, y, kind)
            other = task.other(x) if 5 in corruptions else None
            if other and (other != y or kind):
                self._add(RULE, x, other, kind)
        if {0, 3, 4} & made:
            self._add_foreign()
        pairs = [words for (source, place, _), words in self.buckets.items() if (source, place) == (OWN, OUTPUT)]
        self.usable = {word.x: word for words in pairs for word in words if self._has_donors(word)}

    def _add_foreign(self) -> None:
        space = {word.casefold() for pair in self.task.pairs for word in pair[:2]}
        foreign = [
            (word, rows)
            for folded, (word, lists, rows) in _listed(self.task.lists).items()
            if self.task.list_name not in lists and folded not in space and not fault(word, self.task.layout)
        ]
        for word, rows in foreign:
            self._add(FOREIGN, word, word, None, rows)
        # few words have as many tokens as a name of several words: beside those, several words
        single = [(word, rows) for word, rows in foreign if " " not in word]
        Random("several words").shuffle(single)
        for length in sorted({len(word.split()) for pair in self.task.pairs for word in pair[:2]} - {1}):
            for parts in zip(*(single[start:] for start in range(length)), strict=False):
                words = " ".join(word for word, _ in parts)
                self._add(FOREIGN, words, words, None, frozenset().union(*(rows for _, rows in parts)))

    def _add(self, source: str, x: str, y: str, kind: str | None, rows: frozenset[int] = frozenset()) -> None:
        counted = self.count(x, y)
        if isinstance(counted, str):
            self.rejected[f"{source}: {counted}"] += 1
            return
        for place, size in enumerate(counted[0]):
            self.buckets[source, place, size].append(_Word(x, y, kind, rows, *counted))

    def _has_donors(self, word: _Word) -> bool:
        """Whether a pair alone could be replaced: without this, most draws of ten would hold one that cannot be."""
        for c in self.corruptions:
            if c == SHUFFLED and c not in self.task.donors:
                replaceable = any(w.y != word.y for w in self.buckets[OWN, OUTPUT, word.sizes[OUTPUT]])
            else:
                replaceable = self._parts(c, [word], word) is not None
            if not replaceable:
                self.rejected[f"{OWN}: no donor for {CORRUPTIONS[c]}"] += 1
                return False
        return True

    def askable(self, queries: frozenset[str]) -> frozenset[str]:
        """Those of the queries that are usable, and whose answer does not begin as the query said again does.

        Of "walk", where "walked" is "walk" and "ed", the first token does not tell an answer from a copy.
        """
        fitting = set()
        for x in queries & {*self.usable}:
            copy = self.count(x, x)  # a reason, not tokens, where there can be none
            if x == self.usable[x].y or isinstance(copy, str) or copy[1] != self.usable[x].begins:
                fitting.add(x)
            else:
                self.rejected["query: its answer begins as the query said again"] += 1
        return frozenset(fitting)

    def clean(self, queries: frozenset[str], k: int, ambiguous: int, order: str, rng: Random) -> _Clean:
        """A clean prompt. Raises Misaligned where the draw is not aligned or lacks a donor."""
        drawn = [self.usable[x] for x, *_ in rng.sample(self.task.pairs, len(self.task.pairs)) if x in self.usable]
        query = next(word for word in drawn if word.x in queries)  # of one query, that one
        reason = "too few pairs"
        for keep in ([], [c for c in self.corruptions if c != SHUFFLED]):  # for `shuffled`, only the last pair decides
            shown = self._demonstrations(drawn, query, k, ambiguous, keep)
            if order != "random":
                shown.sort(key=lambda word: bool(word.kind), reverse=order == "ambiguous first")
            lacking = self._lacking(shown, query, self.corruptions)
            reason = f"no donor for {CORRUPTIONS[lacking]}" if lacking is not None else reason
            if lacking in (None, SHUFFLED):
                break
        if lacking is not None or len(shown) < k:
            raise Misaligned(reason, f"words of these token counts are too few for {k} demonstrations")
        marks = [word.kind or "" for word in shown] if any(pair.kind for pair in self.task.pairs) else []
        prompt = self.task.layout.prompt([word[:2] for word in shown], query.x, query.y, marks=marks)
        return prompt, type_tokens(prompt, self.tokenizer, target=True), shown, query

    def _demonstrations(
        self, drawn: list[_Word], query: _Word, k: int, ambiguous: int, keep: Sequence[int]
    ) -> list[_Word]:
        """The first of the words drawn, passing over those beside which a corruption to keep would have no donor."""
        wanted, outputs, shown = {True: ambiguous, False: k - ambiguous}, Counter[str](), list[_Word]()
        limit, exhausted = self.task.limit(k), set()
        for word in drawn:
            alike = (word.sizes, word.kind, self.task.balanced and word.y)
            apart = query.x not in (word.x, word.y) and outputs[word.y] < limit
            if not wanted[bool(word.kind)] or not apart or alike in exhausted:
                continue
            if self._lacking([*shown, word], query, keep) is not None:
                exhausted.add(alike)
                continue
            wanted[bool(word.kind)] -= 1
            outputs[word.y] += 1
            shown.append(word)
        return shown

    def _lacking(self, shown: list[_Word], query: _Word, corruptions: Sequence[int]) -> int | None:
        """The first of the corruptions that has no donor for these demonstrations and this query; None if all have."""
        return next((c for c in corruptions if self._parts(c, shown, query) is None), None)

    def donor(self, c: int, clean: _Clean, rng: Random) -> Prompt:
        """A donor of a clean prompt. Raises Misaligned where the draw is not aligned with it."""
        prompt, tokens, shown, query = clean
        parts = self._parts(c, shown, query, rng)
        if parts is None:
            raise Misaligned(f"no donor for {CORRUPTIONS[c]}", "words of these token counts are too few")
        donor = self.task.layout.prompt(*parts, query.y, marks=prompt.marks)
        check_aligned(tokens, type_tokens(donor, self.tokenizer, target=True))
        return donor

    def _parts(self, c: int, shown: Sequence[_Word], query: _Word, rng: Random | None = None) -> _Parts | None:
        """The parts of a donor; None where there are none.

        rng: draws them; without it they are the first that fit, which shows whether there is a donor at all.
        """
        if c in self.task.donors:
            return self._given(c, shown, query)
        if c != SHUFFLED:
            return self._replaced(c, shown, query, rng)
        outputs = _permuted(shown, rng, self.task.balanced)
        if outputs is None:
            return None
        return [(word.x, y) for word, y in zip(shown, outputs, strict=True)], query.x

    def _given(self, c: int, shown: Sequence[_Word], query: _Word) -> _Parts | None:
        """The parts of a donor that the task brings; None where some have other numbers of tokens."""
        donors = self.task.donors[c]
        for word in (*shown, *[query] * (c == 0)):
            counted = self.count(*donors[word.x])
            if isinstance(counted, str) or counted[0] != word.sizes:
                return None
        return [donors[word.x] for word in shown], donors[query.x][0] if c == 0 else query.x

    def _replaced(self, c: int, shown: Sequence[_Word], query: _Word, rng: Random | None) -> _Parts | None:
        """The parts of a donor whose words are others; None where there are too few.

        rng: shuffles the words of a source, a place and a size; without it they are tried in the order of the lists.
        """
        used: set[str | int] = {query.x, *(word.x for word in shown)}  # inputs, and rows of other lists
        outputs, limit = Counter[str](), self.task.limit(len(shown))

        @cache
        def candidates(source: str, place: int, size: int) -> list[_Word]:
            words = self.buckets[source, place, size]
            return rng.sample(words, len(words)) if rng else words

        def pick(source: str, place: int, old: _Word, as_output: bool) -> _Word | None:
            for word in candidates(source, place, old.sizes[place]):
                fits = word.x not in used and word.kind in (old.kind, None) and used.isdisjoint(word.rows)
                if fits and as_output:
                    free = source == FOREIGN or outputs[word.y] < limit
                    fits = free and word.y not in (old.y, query.x) and word.sizes[OUTPUT] == old.sizes[OUTPUT]
                if fits:
                    used.update([word.x], word.rows)
                    outputs[word.y] += as_output
                    return word
            return None

        pairs, (source_x, source_y) = list[tuple[str, str]](), SOURCES[c]
        for old in shown:
            together = source_x == source_y != FOREIGN
            x = pick(source_x, LATER if pairs else FIRST, old, together)
            y = x if together or x is None else pick(source_y, OUTPUT, old, True)
            if x is None or y is None:
                return None
            pairs.append((x.x, y.y))
        replaced = pick(FOREIGN, QUERY, query, False) if c == 0 else query
        return (pairs, replaced.x) if replaced else None


def _permuted(shown: Sequence[_Word], rng: Random | None, few: bool) -> list[str] | None:
    """The outputs, permuted among places of as many tokens so that no place has the word it had.

    Places of as many tokens follow each other in a ring, shuffled by rng where one is given, those of one word beside
    each other. There, a turn by the largest number of equal words leaves as few in place as there can be. Where some
    are left: None, or with `few` the permutation, unless it leaves all of them.
    """
    old = [word.y for word in shown]
    new = list(old)
    for size in {word.sizes[OUTPUT] for word in shown}:
        places = [place for place, word in enumerate(shown) if word.sizes[OUTPUT] == size]
        if rng:
            rng.shuffle(places)
        words = [old[place] for place in places]
        ring = [place for _, place in sorted(zip(map(words.index, words), places, strict=True))]
        turn = max(Counter(words).values())
        if 2 * turn > len(ring) and not few:
            return None
        for place, source in zip(ring, ring[turn:] + ring[:turn], strict=True):
            new[place] = old[source]
    return new if new != old else None


# ------------------------------------------------------------------------------------------------ prompts


@dataclass(frozen=True)
class WordPairPrompt:
    """A clean prompt and its donors by corruption, all with as many tokens in each slot."""

    index: int
    clean: Prompt
    donors: Mapping[int, Prompt]


@dataclass(frozen=True)
class WordPairPrompts:
    """The prompts of a task for one tokenizer, and what was left out.

    askable: how many queries of the split can be asked. rejected: pairs and words by where they come from and why.
    resampled, dropped: draws and prompts by reason.
    """

    items: tuple[WordPairPrompt, ...]
    askable: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    resampled: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


def marked_demonstrations(
    task: WordPairTask,
    n: int,
    k: int,
    corruptions: Sequence[int] = (0,),
    split: str = "all",
    ambiguous: int | None = None,
) -> int:
    """How many of k demonstrations are marked pairs, see `prompts`.

    Raises ValueError for a split, corruption or number that there is not, whatever the tokenizer.
    """
    made = {*corruptions} - {*task.donors}
    if missing := [c for c in corruptions if c not in task.corruptions or (c == SHUFFLED and k == 1 and c in made)]:
        known = ", ".join(f"{c} ({CORRUPTIONS[c]})" for c in task.corruptions)
        raise ValueError(f"missing corruption index {missing}: task {task.name!r} has {known}, and 2 from k = 2 on")
    marked = sum(bool(pair.kind) for pair in task.pairs)
    task.queries(split)
    m = (round(2 * k / 3) if marked else 0) if ambiguous is None else ambiguous
    if n < 1 or k < 1 or not 0 <= m <= k:
        raise ValueError(f"n = {n}, k = {k}, ambiguous = {m}: choose n and k of 1 or more, and 0 to k ambiguous")
    times = 2 if {1, 3, 4, 5} & made else 1  # the pairs of a donor are others
    for kind, has, needs in (
        ("ambiguous", marked, times * m),
        ("clear", len(task.pairs) - marked, times * (k - m) + 1),
    ):
        if has < needs:
            raise ValueError(
                f"task {task.name!r} has {has} {kind} pairs; k = {k} with {m} ambiguous needs {needs}, query and pairs "
                "for donors included: choose a smaller k, or another number of ambiguous ones"
            )
    return m


def prompts(
    task: str | WordPairTask,
    tokenizer: Any,
    n: int,
    k: int = 10,
    seed: int = 0,
    corruptions: Sequence[int] = (0,),
    split: str = "all",
    ambiguous: int | None = None,
    order: Literal["random", "ambiguous first", "ambiguous last"] = "random",
    donor_seed: int = 0,
    in_turn: bool = False,
) -> WordPairPrompts:
    """n prompts of k demonstrations, with one donor for each of the corruptions. Our own definitions.

    ambiguous: how many demonstrations are marked pairs, by default two in three where the task has any; order: where
    they stand. The query is never marked. in_turn: queries are asked in a seeded order, none again before all were
    asked, as prompts of one query are not independent; otherwise they are drawn, too.

    Prompt i has a generator of its own, Random("task/seed/i/attempt"), and is the first of 50 draws that is aligned and
    has a donor for each of the corruptions: it depends neither on n nor on donor_seed. Under another donor_seed it is
    the same or, rarely, dropped; items keep their index. A draw is an order of all pairs of the list; the query and the
    demonstrations are the first that fit, pairs that rule out a corruption being passed over (see `rejected`). So
    prompts with other corruptions, k, splits, shares or tokenizers have most pairs in common, and all of them where
    every pair has donors; for the very same prompts, ask for all corruptions at once.

    Donors keep layout, marks, answer and, except for 0, the query. The inputs they take from the task are not in the
    clean prompt (outputs may be, in tasks of few outputs or of outputs that are inputs as well), and no input or output
    stands where it stood, except the inputs of 2. Words of other lists are, case-folded, neither inputs nor outputs of
    the task, and no two in a donor are from one row; where inputs are several words there are several of them, too. In
    a marked place stands a marked pair for 1 and 5, and the input (4) or output (3) of one, so that a donor has as many
    of them as its prompt. They obey the other rule as well: 5 differs from 1 in the clear pairs only, and not at all
    where every demonstration is marked. 2 knows no kinds. Where a task brings words of its own for a corruption, these
    stand in the place of those of each pair, and for 0 in that of the query; a pair whose words have other numbers of
    tokens is rejected.

    A query is left out where its answer begins with the same token as the query said again would: a model that copies
    would say the first token of the answer. The other pairs still stand among the demonstrations.

    Raises ValueError for a task, split, order, corruption or number that there is not, and UnsupportedTokenizer for one
    without character offsets, and where no prompt at all can be made.
    """
    if order not in ("random", "ambiguous first", "ambiguous last"):
        raise ValueError(f"unknown order {order!r}; choose one of random, ambiguous first, ambiguous last")
    task = find(task)
    m = marked_demonstrations(task, n, k, corruptions, split, ambiguous)
    check_rows(task, tokenizer)
    stock = _Stock(task, tokenizer, corruptions)
    every = task.queries(split)
    queries = stock.askable(every)
    if 2 * len(queries) < len(every):
        _say_few(task.name, len(queries), len(every), _reasons(stock.rejected))
    turns = sorted(queries)
    Random(f"{task.name}/{seed}/turns").shuffle(turns)
    items: list[WordPairPrompt] = []
    resampled, dropped = Counter[str](), Counter[str]()
    for index in range(n) if queries else ():
        if index == HOPELESS and not items:
            break
        key = f"{task.name}/{seed}/{index}"
        of = frozenset([turns[index % len(turns)]]) if in_turn else queries
        try:
            clean = _first(partial(stock.clean, of, k, m, order), key, resampled)
            donors = {
                c: _first(partial(stock.donor, c, clean), f"{key}/{c}/{donor_seed}", resampled) for c in corruptions
            }
        except Misaligned as error:
            dropped[error.reason] += 1
            continue
        items.append(WordPairPrompt(index, clean[0], donors))
    if not items or len(queries) < 2 <= n:
        reasons = _reasons(stock.rejected + dropped)
        made = "one query alone can be asked" if items else "no prompt can be made"
        raise UnsupportedTokenizer(
            f"task {task.name!r}: {made} for this tokenizer ({reasons}). Try another layout ({', '.join(LAYOUTS)}, or "
            "your own), pairs whose answers begin with another token than the query, a smaller k, or fewer corruptions"
        )
    return WordPairPrompts(tuple(items), len(queries), stock.rejected, resampled, dropped)


def _reasons(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{reason} {count}" for reason, count in counts.items())


@cache  # so that it is said once
def _say_few(task: str, askable: int, queries: int, reasons: str) -> None:
    """Says on stderr that fewer than half of a task's queries can be asked."""
    print(f"{task}: {askable} of {queries} queries can be asked ({reasons})", file=sys.stderr, flush=True)


def _first(make: Callable[[Random], T], key: str, faults: Counter[str]) -> T:
    """The first of TRIES draws that works, each from a generator of its own. Raises the last Misaligned."""
    for attempt in range(TRIES):
        try:
            return make(Random(f"{key}/{attempt}"))
        except Misaligned as error:
            faults[error.reason] += 1
            fault = error
    raise fault
