"""What a trainer process that is not the first does: it holds the same parameters and does its share of every step."""

from offbeat.config import RunConfig, language_sections
from offbeat.config.language import SamplingConfig
from offbeat.workloads.language.batches import Completions
from offbeat.workloads.language.checks import score_tokens
from offbeat.workloads.language.learner import parted
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.team import Order, Team
from offbeat.workloads.language.updates import Updater


def follow(config: RunConfig, policy: LanguagePolicy, team: Team) -> None:
    """Do what process 0 orders until it says that this is the end; raises WorkloadError when it is gone."""
    workload, algorithm = language_sections(config)
    updater = Updater(policy, config, workload, algorithm, team)
    while (order := team.hear()) is not Order.END:
        match order:
            case Order.LEARN:
                team.gather(updater.learn(team.scatter(None)))
            case Order.SCORE:
                asked: tuple[Completions, SamplingConfig] = team.scatter(None)
                score_tokens(policy, *asked, max_tokens=updater.micro_batch_tokens)
            case Order.PARAMETERS:
                policy.weights()
            case Order.STATE:
                updater.state()
            case Order.LOAD:
                policy.load_weights(team.spread(None, None)[0])
            case Order.RESTORE:
                tensors, settings = team.spread(None, None)
                updater.restore(*parted(tensors), settings)
            case Order.DIGEST:
                team.gather(updater.digest(0))
