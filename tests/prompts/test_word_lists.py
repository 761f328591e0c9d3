"""The word lists: their shape, and samples of their facts written down here a second time."""

import re
from collections import Counter
from hashlib import sha256

import pytest

from data.embedded_models.recipe.words import PAIR_TASKS, held_out_inputs, promised
from tests.clone import ROOT, text
from util.prompts.own_tasks import column, table
from util.prompts.word_pairs import LISTS, TRAINED

COLUMNS = {
    "country_capital": ("country", "capital", "currency"),
    "present_past": ("present", "past"),
    "person_sport": ("person", "sport"),
    "words": ("word",),
}
NAME = r"[A-Z][A-Za-z]+( [A-Z][A-Za-z]+)*"
CELLS = {  # what a cell looks like: ASCII, single spaces inside, no mark that ends a part of a prompt
    "country": NAME,
    "capital": NAME,
    "currency": r"[a-z]+",
    "present": r"[a-z]+",
    "past": r"[a-z]+",
    "person": NAME,
    "sport": r"[a-z]+",
    "word": r"[a-z]{3,8}",
}
COUNTRIES = """
    Albania Tirana lek, Armenia Yerevan dram, Australia Canberra dollar, Austria Vienna euro, Bangladesh Dhaka taka,
    Belgium Brussels euro, Canada Ottawa dollar, Chile Santiago peso, China Beijing yuan, Croatia Zagreb euro,
    Cuba Havana peso, Czechia Prague koruna, Denmark Copenhagen krone, Ecuador Quito dollar, Finland Helsinki euro,
    France Paris euro, Germany Berlin euro, Ghana Accra cedi, Greece Athens euro, Hungary Budapest forint,
    Iceland Reykjavik krona, Iraq Baghdad dinar, Italy Rome euro, Japan Tokyo yen, Kenya Nairobi shilling,
    Morocco Rabat dirham, Nepal Kathmandu rupee, Nigeria Abuja naira, Norway Oslo krone, Peru Lima sol,
    Poland Warsaw zloty, Portugal Lisbon euro, Romania Bucharest leu, Senegal Dakar franc, Spain Madrid euro,
    Sweden Stockholm krona, Thailand Bangkok baht, Turkey Ankara lira, Vietnam Hanoi dong, Zambia Lusaka kwacha
"""
PERSONS = {
    "soccer": "Lionel Messi, Cristiano Ronaldo, Diego Maradona, David Beckham, Zinedine Zidane, Mia Hamm",
    "football": "Tom Brady, Joe Montana, Peyton Manning, Jerry Rice, Walter Payton, Brett Favre",
    "baseball": "Babe Ruth, Hank Aaron, Derek Jeter, Willie Mays, Ted Williams, Lou Gehrig",
    "basketball": "Kobe Bryant, LeBron James, Larry Bird, Magic Johnson, Tim Duncan, Stephen Curry",
    "hockey": "Wayne Gretzky, Mario Lemieux, Bobby Orr, Gordie Howe, Sidney Crosby, Patrick Roy",
}
IDENTITY = (
    "bet bid broadcast burst cast cost cut forecast hit hurt let offset preset put quit reset rid set shed shut slit"
    " split spread thrust upset".split()
)
# more verbs than the list has: one that is added as if it were regular is found
IRREGULAR = dict(
    pair.split()
    for pair in """
    arise arose, be was, bear bore, beat beat, become became, begin began, bend bent, bind bound, bite bit,
    bleed bled, blow blew, break broke, breed bred, bring brought, build built, buy bought, catch caught,
    choose chose, cling clung, come came, creep crept, deal dealt, dig dug, do did, draw drew, drink drank,
    drive drove, eat ate, fall fell, feed fed, feel felt, fight fought, find found, flee fled, fling flung,
    fly flew, forbid forbade, foresee foresaw, forget forgot, forgive forgave, freeze froze, get got, give gave,
    go went, grind ground, grow grew, hang hung, have had, hear heard, hide hid, hold held, keep kept, know knew,
    lay laid, lead led, leave left, lend lent, lie lay, lose lost, make made, mean meant, meet met, mislead misled,
    mistake mistook, misunderstand misunderstood, outgrow outgrew, overcome overcame, overeat overate,
    overhear overheard, oversleep overslept, overtake overtook, pay paid, read read, rebuild rebuilt, redo redid,
    repay repaid, rethink rethought, rewrite rewrote, ride rode, ring rang, rise rose, run ran, say said, see saw,
    seek sought, sell sold, send sent, shake shook, shoot shot, show showed, shrink shrank, sing sang, sink sank,
    sit sat, sleep slept, slide slid, speak spoke, spend spent, spin spun, stand stood, steal stole, stick stuck,
    sting stung, strike struck, swear swore, sweep swept, swim swam, swing swung, take took, teach taught,
    tear tore, tell told, think thought, throw threw, undergo underwent, understand understood, undertake undertook,
    undo undid, uphold upheld, wake woke, wear wore, weep wept, win won, wind wound, withdraw withdrew,
    withhold withheld, withstand withstood, write wrote
    """.split(",")
)
# these double their last letter too
FINAL_STRESS = "admit commit control occur permit prefer refer regret submit transfer".split()


def regular(verb):
    """The past of a regular verb."""
    if verb.endswith("e"):
        return verb + "d"
    if re.search("[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    short = re.fullmatch("[^aeiou]*(?:(?<=q)u)?[aeiou][^aeiouwxy]", verb)
    return verb + verb[-1] + "ed" if short or verb in FINAL_STRESS else verb + "ed"


def words_of(names):
    """The single words of lists, case-folded."""
    cells = [cell for name in names for row in table(name) for cell in row.values()]
    return {word for cell in cells for word in cell.casefold().split()}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_file_is_plain(name):
    words = (ROOT / f"data/word_lists/{name}.csv").read_bytes().decode("ascii")
    header, *lines = words.removesuffix("\n").split("\n")
    assert words.endswith("\n") and header.split(",") == [*COLUMNS[name]]
    assert len(lines) == len(table(name))
    for line in lines:
        cells = line.split(",")
        assert len(cells) == len(COLUMNS[name]), line
        for title, cell in zip(COLUMNS[name], cells, strict=True):
            assert re.fullmatch(CELLS[title], cell), line


@pytest.mark.parametrize(
    "name, title", [(name, titles[0]) for name, titles in COLUMNS.items()] + [("country_capital", "capital")]
)
def test_no_input_and_no_capital_is_there_twice(name, title):
    counts = Counter(cell.casefold() for cell in column(name, title))
    assert not [cell for cell, count in counts.items() if count > 1]


def test_countries_agree_with_those_written_here():
    sample = {tuple(line.split()) for line in COUNTRIES.split(",")}
    assert len(sample) == 40 and not sample - {tuple(row.values()) for row in table("country_capital")}


def test_persons_agree_with_those_written_here():
    sample = {(person, sport) for sport, persons in PERSONS.items() for person in persons.split(", ")}
    assert not sample - {tuple(row.values()) for row in table("person_sport")}


def test_every_past_is_regular_or_written_here():
    found = {row["present"]: row["past"] for row in table("present_past")}
    assert [verb for verb, past in found.items() if verb == past] == IDENTITY
    assert {*IDENTITY}.isdisjoint(IRREGULAR)
    assert found == {verb: verb if verb in IDENTITY else IRREGULAR.get(verb) or regular(verb) for verb in found}


def test_no_past_is_shared_or_the_present_of_another_verb():
    pasts, presents = Counter(column("present_past", "past")), {*column("present_past", "present")}
    assert not [past for past, count in pasts.items() if count > 1]
    assert not [row for row in table("present_past") if row["past"] in presents and row["past"] != row["present"]]


def test_no_word_stands_in_two_lists():
    """A word of another list is foreign to a task only so; names are taken apart, as "Bird" is a word too."""
    names = [*COLUMNS]
    for number, name in enumerate(names):
        assert not words_of([name]) & words_of(names[number + 1 :])


def test_the_readme_counts_the_rows():
    page = text("data/word_lists/README.md")
    stated = {name: int(rows) for name, rows in re.findall(r"^\| `(\w+)\.csv` \|[^|]*\| (\d+)\b", page, re.MULTILINE)}
    assert stated == {name: len(table(name)) for name in (*COLUMNS, *TRAINED[::2], "categories")}


@pytest.mark.parametrize("name, trained", [*zip(LISTS, TRAINED, strict=True)][::2])
def test_the_lists_begin_with_what_the_embedded_model_was_trained_on(name, trained):
    assert table(name)[: len(table(trained))] == table(trained)
    assert len(table(name)) > 2 * len(table(trained))


def test_the_embedded_model_s_words_are_those_of_its_training():
    """The digest was taken before the lists of the tasks grew: another one would be another corpus and tokenizer."""
    trained = repr((PAIR_TASKS, promised(), sorted(held_out_inputs()))).encode()
    assert sha256(trained).hexdigest() == "31dff0fc484dd6bbf72e74f560f971b149d1c69c0a2005aa92b82ac202dc861f"
