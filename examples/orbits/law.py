"""Looks for the law behind predicted forces by symbolic regression (pyoperon and sympy, from PyPI).

    law.py OUT/magnitudes.json OUT/law.json

From 1,000 points of held-out systems: force on a unit of mass F (AU / year^2) from distance r (AU)
and mass of the star M (Suns). The same search on the true forces is the control: it has to find
F = 39.5 M / r^2. The parsimony rule: of all formulas on the front of error and length, the shortest
whose mean squared error is at most 1.5 times the smallest, or a millionth of the variance.
The result is printed as it is found, its constants multiplied out.
"""

import argparse
import json

import numpy as np

POINTS = 1000
SYMBOLS = 'add,mul,div,sin,cos,exp,constant,variable'  # after Vafa et al.: +, *, 1/x, sin, cos, exp
MAX_LENGTH = 20
FACTOR, FLOOR = 1.5, 1e-6
SEEDS = 0, 1
GENERATIONS = 60
POPULATION = 400
DIGITS = 4  # of a simplified formula


def front(x, y, seed):
    """[(nodes, mean squared error, formula)] of one search; x: [points, 2]."""
    from pyoperon.sklearn import SymbolicRegressor

    search = SymbolicRegressor(
        allowed_symbols=SYMBOLS, objectives=['mse', 'length'], max_length=MAX_LENGTH,
        optimizer_iterations=10, generations=GENERATIONS, population_size=POPULATION,
        n_threads=1, random_state=seed)
    search.fit(x, y)
    return [(each['length'], float(each['mean_squared_error']),
             each['model'].replace('X1', 'r').replace('X2', 'M'))
            for each in search.pareto_front_]


def chosen(formulas, variance):
    """The parsimony rule."""
    formulas = [each for each in formulas if np.isfinite(each[1])]
    limit = max(FACTOR * min(error for _, error, _ in formulas), FLOOR * variance)
    return min(each for each in formulas if each[1] <= limit)


def newton(x, y):
    """The best c of F = c M / r^2, and its R^2."""
    basis = x[:, 1] / x[:, 0]**2
    c = float(basis @ y / (basis @ basis))
    return {'c': c, 'r2': float(1 - ((y - c * basis)**2).sum() / ((y - y.mean())**2).sum())}


def simplified(formula):
    """The formula with its constants multiplied out, to DIGITS."""
    import sympy

    short = sympy.sympify(formula, locals={name: sympy.Symbol(name, positive=True)
                                           for name in ('r', 'M')})
    return str(sympy.N(sympy.expand(short), DIGITS))


def law(x, y):
    """What the search finds, and how well Newton's law fits the same points."""
    formulas = [each for seed in SEEDS for each in front(x, y, seed)]
    length, error, formula = chosen(formulas, y.var())
    return {'formula': formula, 'simplified': simplified(formula), 'nodes': length,
            'r2': float(1 - error / y.var()), 'newton': newton(x, y)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('magnitudes')
    parser.add_argument('out')
    given = parser.parse_args()
    with open(given.magnitudes, encoding='utf-8') as file:
        runs = json.load(file)
    found = {}
    for name, points in runs.items():
        chosen_points = np.random.default_rng(0).permutation(len(points['true']))[:POINTS]
        x = np.stack((points['distance_au'], points['star_suns']), -1)[chosen_points]
        if not found:
            found['true forces'] = law(x, np.array(points['true'])[chosen_points])
        found[name] = law(x, np.array(points['predicted'])[chosen_points])
    with open(given.out, 'w', encoding='utf-8') as file:
        json.dump(found, file, indent=1)
    for name, each in found.items():
        print(f'{name}: F = {each["simplified"]}  ({each["nodes"]} nodes, R² {each["r2"]:.4f}); '
              f'Newton: {each["newton"]["c"]:.2f} M / r², R² {each["newton"]["r2"]:.4f}')


if __name__ == '__main__':
    main()
