"""The mathematics of the paper, corrected: pure float64 functions and frozen dataclasses, grouped by statement.

Functions broadcast, and take numbers, lists and arrays alike.
"""

# ruff: noqa: F403, F405
from joma.theory.activations import *
from joma.theory.attention import *
from joma.theory.attention_flow import *
from joma.theory.common_vector import *
from joma.theory.computation_graph import *
from joma.theory.convergence import *
from joma.theory.critical_points import *
from joma.theory.descent import *
from joma.theory.from_counts import *
from joma.theory.hyperplane import *
from joma.theory.integrate import *
from joma.theory.invariants import *
from joma.theory.isotropic import *
from joma.theory.kept_term import *
from joma.theory.latent_tree import *
from joma.theory.layer import *
from joma.theory.layer_order import *
from joma.theory.learned_embeddings import *
from joma.theory.mixture import *
from joma.theory.rebound import *
from joma.theory.saliency import *
from joma.theory.simulation import *
from joma.theory.softmax_estimate import *
from joma.theory.superposition import *
from joma.theory.winner_take_all import *

__all__ = ["Activation", "activation", "gelu", "homogeneous", "linear", "relu", "sigmoid", "silu", "softplus", "tanh"]
__all__ += ["Attention", "AttentionKind"]
__all__ += ["AttentionFlow", "LinearAttentionFlow"]
__all__ += ["QueriesFlow", "QueriesRun", "common_invariant", "common_velocity", "dip_window", "shared_gain"]
__all__ += ["ComputationGraph", "Edge", "TwoValuedInput", "angle_sum", "backpropagated_correlation_bound"]
__all__ += ["gated_cosine_bound", "least_backpropagated_cosine", "recursed_cosines", "sigmoid_learning_time"]
__all__ += ["sloped_cosine_bound", "summed_cosine_bound", "worst_edge"]
__all__ += ["ConvergenceFlow", "convergence_ratio", "efolds", "efolds_to_asymptote", "fraction_learned", "gaussian_g"]
__all__ += ["learning_time", "normalised_field", "rate_correction", "rate_offset", "rho", "shared_field"]
__all__ += ["shared_solution", "small_g", "time_to_efolds", "zeta"]
__all__ += ["CriticalPair", "CriticalPoint", "CriticalRay", "LinearisedFlow", "critical_pairs", "critical_points"]
__all__ += ["RestPoint", "critical_rays", "forced_ray", "lowest_slope", "rest_points", "straddling_distance"]
__all__ += ["SGD", "Adam", "GradientSteps", "StepRecipe", "train"]
__all__ += ["TokensOfNode", "centers_from_counts", "clusters_from_counts", "saliency_from_counts", "target_direction"]
__all__ += ["tokens_of_node"]
__all__ += ["central_product", "gate_level", "gate_mass", "gate_mass_slope", "gate_mean", "gate_mean_at_level"]
__all__ += ["gate_mean_at_level_slope", "gate_moment", "gate_moment_slope", "half_space_mean", "line_intersections"]
__all__ += ["mean_activation", "mean_at_level", "mean_at_level_slope", "mean_ratio", "mean_ratio_slope", "reflect"]
__all__ += ["theta1", "theta1_inverse", "theta1_slope", "theta2", "theta2_slope"]
__all__ += ["integrate"]
__all__ += ["Invariant", "invariant_drift", "layer_invariant", "logit_sums", "minibatch_drift_factor"]
__all__ += ["momentum_drift_factor", "weight_decay_factor"]
__all__ += ["Gaussian", "Isotropic", "RadialProfile", "StudentT", "UniformBall"]
__all__ += ["DroppedTerm", "dropped_term", "kept_field", "kept_gaps", "kept_rates"]
__all__ += ["LatentTree", "chain_parameter", "cooccurrence", "cooccurrence_limit", "cooccurrence_slope", "edge_matrix"]
__all__ += ["nested_tree", "node_distribution", "one_latent_per_class", "pair_distribution", "regular_tree"]
__all__ += ["root_cooccurrence", "root_parameter"]
__all__ += ["Embeddings", "Layer", "LayerGradient", "Samples", "cross_entropy_gradient", "fixed_gradient"]
__all__ += ["orthonormal_embeddings"]
__all__ += ["LayerChain", "LayersRun", "uniform_fraction"]
__all__ += ["LearningRates", "balance", "embedding_gradient", "learned_flow", "softmax_leak", "token_invariant"]
__all__ += ["Growth", "Mixture", "two_clusters"]
__all__ += ["Rebound", "attention_entropy", "entropy_finally_rises", "entropy_gradient", "entropy_rebound"]
__all__ += ["rank_rebound", "rebound", "stable_rank"]
__all__ += ["discriminancy", "frequency", "saliency", "saliency_along", "stationarity_drift"]
__all__ += ["Simulation", "SimulationConfig", "figure4", "simulate"]
__all__ += ["anchored", "estimate", "logit_velocity", "moving_mean_term", "normalised_correlation"]
__all__ += ["implicit_bias", "implicit_bias_rate", "query_interaction", "response", "superpose", "weights_from_parts"]
__all__ += ["LinearFlow"]
