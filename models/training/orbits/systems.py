"""Systems of one planet and their trajectories, as token ids.

After Vafa et al. 2025 (arXiv 2507.06952): orbits are ellipses (Kepler's equation), masses and
eccentricities have their distributions, positions are discretized per axis. What differs, and why,
is in examples/orbits/README.md.

    [time step, x_1, y_1, x_2, y_2, ...]     the Sun is at the origin
"""

import dataclasses

import numpy as np

GM_SUN = 4 * np.pi**2  # AU^3 / year^2
WEEK_YEARS = 7 / 365.25
UNIT_AU = 0.3
REACH_AU = 50.0
FIRST_STEP = -2  # time steps are 2^k weeks, k from here on
NUM_TIME_STEPS = 13
STEPS_AN_ORBIT = 10, 40
KEPLER_ITERATIONS = 20

# Name, semi-major axis (AU), eccentricity, mass (Suns).
PLANETS = (
    ('Mercury', 0.387, 0.205, 1.652e-7), ('Venus', 0.723, 0.007, 2.447e-6),
    ('Earth', 1.000, 0.017, 3.003e-6), ('Mars', 1.524, 0.093, 3.213e-7),
    ('Jupiter', 5.203, 0.048, 9.544e-4), ('Saturn', 9.537, 0.054, 2.857e-4),
    ('Uranus', 19.189, 0.047, 4.354e-5), ('Neptune', 30.069, 0.009, 5.165e-5))
PLANET_STEPS_AN_ORBIT = 24
LABELS_A_PLANET = 10  # steps whose force vector is known, of each planet of the solar system
LABELS_HELD_OUT = 2  # steps whose force is known, of each held-out system
MAGNITUDE_AXIS = 0.5, 2.0  # AU


@dataclasses.dataclass
class Systems:
    """Arrays [n], one value a system."""

    axis: np.ndarray  # semi-major, AU
    eccentricity: np.ndarray
    star: np.ndarray  # mass of star and planet, Suns
    tilt: np.ndarray  # of the perihelion, radians
    phase: np.ndarray  # mean anomaly at the first step, radians
    time_step: np.ndarray  # index k: 2^(FIRST_STEP + k) weeks

    def years(self):
        """The time step of each system."""
        return WEEK_YEARS * 2.0 ** (FIRST_STEP + self.time_step)


def time_step_of(axis, star, steps_an_orbit):
    """The index of the time step that cuts an orbit into about so many steps."""
    period = np.sqrt(axis**3 / star)
    index = np.round(np.log2(period / steps_an_orbit / WEEK_YEARS)) - FIRST_STEP
    return np.clip(index, 0, NUM_TIME_STEPS - 1).astype(int)


def sample(random, n, axis=(0.3, 32.0)):
    """n random systems; semi-major axes are log-uniform in `axis` (AU)."""
    a = np.exp(random.uniform(np.log(axis[0]), np.log(axis[1]), n))
    star = np.clip(np.exp(random.normal(0, 0.35, n)), 0.1, 5)
    steps = np.exp(random.uniform(*np.log(STEPS_AN_ORBIT), n))
    return Systems(a, np.minimum(random.beta(0.867, 3.03, n), 0.8), star,
                   random.uniform(0, 2 * np.pi, n), random.uniform(0, 2 * np.pi, n),
                   time_step_of(a, star, steps))


def solar_system(seed):
    """The eight planets, each alone with the Sun, at random places of their orbits."""
    random = np.random.default_rng([seed, 8])
    _, axis, eccentricity, mass = (np.array(column) for column in zip(*PLANETS))
    n = len(PLANETS)
    return Systems(axis, eccentricity, 1 + mass, random.uniform(0, 2 * np.pi, n),
                   random.uniform(0, 2 * np.pi, n),
                   time_step_of(axis, 1 + mass, PLANET_STEPS_AN_ORBIT))


def positions(systems, steps):
    """[n, steps, 2], AU."""
    motion = np.sqrt(GM_SUN * systems.star / systems.axis**3)  # radians a year
    mean = systems.phase[:, None] + (motion * systems.years())[:, None] * np.arange(steps)
    e = systems.eccentricity[:, None]
    mean = np.mod(mean, 2 * np.pi)
    angle = mean + e * np.sin(mean)  # eccentric anomaly, by Newton's method
    for _ in range(KEPLER_ITERATIONS):
        angle -= (angle - e * np.sin(angle) - mean) / (1 - e * np.cos(angle))
    x, y = np.cos(angle) - e, np.sqrt(1 - e**2) * np.sin(angle)
    cos, sin = np.cos(systems.tilt)[:, None], np.sin(systems.tilt)[:, None]
    return systems.axis[:, None, None] * np.stack((cos * x - sin * y, sin * x + cos * y), -1)


def accelerations(systems, places):
    """Newton's: the force on a unit of mass, AU / year^2, at `places` [n, steps, 2]."""
    distance = np.linalg.norm(places, axis=-1, keepdims=True)
    return -GM_SUN * systems.star[:, None, None] * places / distance**3


@dataclasses.dataclass(frozen=True)
class Grid:
    """Coordinates as ids: those of x, those of y, those of the time step."""

    bins: int = 512  # of an axis; equally wide in asinh(x / UNIT_AU): finer near the Sun

    @property
    def vocabulary(self):
        return 2 * self.bins + NUM_TIME_STEPS

    def bins_of(self, x):
        """Bin of a coordinate in AU."""
        share = np.arcsinh(x / UNIT_AU) / np.arcsinh(REACH_AU / UNIT_AU)  # -1 to 1
        return np.clip(np.floor((share + 1) / 2 * self.bins), 0, self.bins - 1).astype(int)

    def centre_of(self, bins):
        """The coordinate in AU at the middle of a bin."""
        share = (np.asarray(bins) + 0.5) / self.bins * 2 - 1
        return UNIT_AU * np.sinh(share * np.arcsinh(REACH_AU / UNIT_AU))

    def ids_of(self, systems, places):
        """[n, 1 + 2 steps] token ids: the time step, then x and y of each step."""
        pairs = self.bins_of(places) + np.array([0, self.bins])
        first = 2 * self.bins + systems.time_step[:, None]
        return np.concatenate((first, pairs.reshape(len(first), -1)), 1)


def y_positions(steps):
    """Where a step is complete: the position of its y among the ids."""
    return 2 + 2 * np.arange(steps)


@dataclasses.dataclass
class ForceData:
    """What a fine-tuning learns from, and what it is measured on."""

    systems: Systems
    places: np.ndarray  # [n, steps, 2], AU
    ids: np.ndarray  # [n, 1 + 2 steps]
    targets: np.ndarray  # [n, steps, outputs]
    is_labelled: np.ndarray  # [n, steps]


def vector_data(grid, steps, seed):
    """The solar system: force vectors in units of the planet's strongest, 10 steps of each known.
    """
    planets = solar_system(seed)
    places = positions(planets, steps)
    force = accelerations(planets, places)
    force /= np.linalg.norm(force, axis=-1).max(1)[:, None, None]
    random = np.random.default_rng([seed, 10])
    known = np.zeros(force.shape[:2], bool)
    for row in known:
        row[random.choice(steps, min(LABELS_A_PLANET, steps // 2), replace=False)] = True
    return ForceData(planets, places, grid.ids_of(planets, places), force, known)


def magnitude_data(grid, steps, seed, n):
    """n systems with log10 of the force on a unit of mass (AU / year^2): all steps of nine in ten
    are known, two steps of the others."""
    drawn = sample(np.random.default_rng([seed, 11]), n, MAGNITUDE_AXIS)
    places = positions(drawn, steps)
    force = np.linalg.norm(accelerations(drawn, places), axis=-1, keepdims=True)
    random = np.random.default_rng([seed, 12])
    known = np.ones(force.shape[:2], bool)
    known[-(n // 10):] = False
    for row in known[-(n // 10):]:
        row[random.choice(steps, LABELS_HELD_OUT, replace=False)] = True
    return ForceData(drawn, places, grid.ids_of(drawn, places), np.log10(force), known)
