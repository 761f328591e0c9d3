"""Data sets of StaICC as arguments, and which of their prompts are asked."""

from util.load_model_and_data import staicc_prompts
from util.roles.label_roles import LabelTask
from util.study.checked import Datasets, capped, checked, dataset_name


def test_more_prompts_than_there_are_become_all_of_them(capsys):
    capped.cache_clear()
    assert LabelTask(prompts=100_000).request == LabelTask(prompts=512).request
    assert capsys.readouterr().err == "prompts = 100000: a data set of StaICC has 512 to ask, all are taken\n"


def test_a_data_set_is_named_by_its_name_or_index():
    assert dataset_name(4) == dataset_name("4") == dataset_name("trec") == "trec"
    assert LabelTask(dataset="4").request == LabelTask(dataset="trec").request

    @checked
    class Several:
        datasets: Datasets

    assert Several("trec, 0").datasets == Several([4, "glue_sst2"]).datasets == ("trec", "glue_sst2")


def test_prompts_are_the_last_of_the_data_set():
    prompts = staicc_prompts("trec", 2)[-3:]
    permuted = [prompt.permuted(number) for number, prompt in enumerate(prompts)]
    assert LabelTask(k=2, prompts=3).items == prompts
    assert LabelTask(k=2, prompts=3, permuted=True).items == permuted


def inputs(prompt):
    """The texts of the demonstrations and, last, of the query."""
    return [prompt.text[start:stop] for start, stop in prompt.spans["x"]]


def query(prompt):
    return inputs(prompt)[-1]


def test_another_seed_asks_other_queries_behind_other_demonstrations():
    own, other = staicc_prompts("trec", 3), staicc_prompts("trec", 3, seed=1)
    gold = {query(prompt): prompt.gold for prompt in own}
    assert {query(prompt): prompt.gold for prompt in other} == gold and len(gold) == 512  # the same queries, ...
    assert {query(prompt) for prompt in other[:256]} == {query(prompt) for prompt in own[256:]}
    shown = {query(prompt): {*inputs(prompt)[:-1]} for prompt in own}
    for prompt in other:
        *demonstrations, asked = inputs(prompt)
        assert len({*demonstrations}) == 3 and {*demonstrations} != shown[asked]
    staicc_prompts.cache_clear()
    assert staicc_prompts("trec", 3, seed=1) == other != staicc_prompts("trec", 3, seed=2)
    assert staicc_prompts("trec", 3) == own, "StaICC's own experimentor is as it was"
    assert LabelTask(k=3, prompts=4, seed=1).items == other[-4:]
