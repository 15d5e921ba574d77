//! Optimal cuts of sorted weighted numbers into clusters.
//!
//! The squared error of a cluster satisfies the quadrangle inequality, so the least total as a function of the number of
//! clusters is convex, and the best cuts into k clusters are found as shortest paths with a price on every cluster: each price
//! is one pass with a queue of candidates, and the price for k is searched. Where no price gives k clusters, two paths of the
//! same price are spliced (the concave-link-length argument of Aggarwal, Schieber and Tokuyama, 1994).

/// Sums over the numbers up to a place: of weights, weight · value, weight · value².
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) weight: f64,
    first: f64,
    second: f64,
}

impl Sum {
    fn step(self, value: f64, weight: f64) -> Self {
        Self {
            weight: self.weight + weight,
            first: self.first + weight * value,
            second: self.second + weight * value * value,
        }
    }
}

/// Prefix sums before each number and after the last. They count from the number nearest to zero in both directions, so that
/// the small numbers in the middle lose no digits to large ones.
pub(crate) fn sums(values: &[f64], weights: &[f64]) -> Vec<Sum> {
    let middle = values.partition_point(|v| *v < 0.0);
    let mut sums = vec![Sum::default(); values.len() + 1];
    for i in (0..middle).rev() {
        sums[i] = sums[i + 1].step(values[i], -weights[i]);
    }
    for i in middle..values.len() {
        sums[i + 1] = sums[i].step(values[i], weights[i]);
    }
    sums
}

/// Squared error of the numbers between two places around their mean.
#[inline]
pub(crate) fn cost(a: &Sum, b: &Sum) -> f64 {
    let weight = b.weight - a.weight;
    let first = b.first - a.first;
    if weight > 0.0 { ((b.second - a.second) - first * first / weight).max(0.0) } else { 0.0 }
}

/// Mean of the numbers between two places; none where they weigh nothing.
pub(crate) fn mean(a: &Sum, b: &Sum) -> Option<f64> {
    let weight = b.weight - a.weight;
    (weight > 0.0).then(|| (b.first - a.first) / weight)
}

/// A clustering: places where clusters begin, and the end.
#[derive(Debug, Clone)]
struct Path {
    cuts: Vec<usize>,
    cost: f64,
}

impl Path {
    fn new(cuts: Vec<usize>, sums: &[Sum]) -> Self {
        let cost = cuts.windows(2).map(|c| cost(&sums[c[0]], &sums[c[1]])).sum();
        Self { cuts, cost }
    }

    fn clusters(&self) -> usize {
        self.cuts.len() - 1
    }
}

/// Memory of the search, to be used again.
#[derive(Debug, Default)]
pub(crate) struct Search {
    best: Vec<f64>,
    parent: Vec<u32>,
    /// Candidates for the last cut before a place, each with the first place where it is the best.
    queue: Vec<(u32, u32)>,
}

impl Search {
    /// The cuts (k + 1 places, first and last included) of least squared error into `k` clusters, every number its own where
    /// there are not more than k; and the price they are cheapest at.
    ///
    /// `price` is a guess at it: what one cluster more would save.
    pub(crate) fn optimal(&mut self, sums: &[Sum], k: usize, mut price: f64) -> (Vec<usize>, f64) {
        /// Steps by the cube law before those along the hull, which end by themselves.
        const CUBE: usize = 12;
        let n = sums.len() - 1;
        if k >= n {
            return ((0..=n).collect(), 0.0);
        }
        let mut fewer = Path::new(vec![0, n], sums);
        if k <= 1 {
            return (fewer.cuts, price);
        }
        let mut more = Path::new((0..=n).collect(), sums);
        let (mut low, mut high) = (0.0, f64::INFINITY);
        for step in 0..4 * CUBE {
            let hull = (fewer.cost - more.cost) / (more.clusters() - fewer.clusters()) as f64;
            let along_hull = step >= CUBE || !(price > low && price < high);
            if along_hull {
                price = hull;
            }
            if price <= 0.0 || !price.is_finite() {
                break;
            }
            let path = Path::new(self.cheapest(sums, price), sums);
            let m = path.clusters();
            if m == k {
                return (path.cuts, price);
            }
            // A corner of the hull cannot lie between two neighbours of it: both are best at this price.
            let corner = m > fewer.clusters() && m < more.clusters();
            if along_hull && !corner {
                break;
            }
            let guess = price * (m as f64 / k as f64).powi(3);
            if m < k {
                high = price;
                if m >= fewer.clusters() {
                    fewer = path;
                }
            } else {
                low = price;
                if m <= more.clusters() {
                    more = path;
                }
            }
            price = guess;
        }
        (splice(&fewer, &more, k), price.max(0.0))
    }

    /// A number that the squared error of no clustering into `k` is below; tight at the price the best is cheapest at.
    pub(crate) fn bound(&mut self, sums: &[Sum], k: usize, price: f64) -> f64 {
        let path = Path::new(self.cheapest(sums, price), sums);
        path.cost + price * (path.clusters() as f64 - k as f64)
    }

    /// The cheapest cuts when every cluster costs `price` beside its error.
    fn cheapest(&mut self, sums: &[Sum], price: f64) -> Vec<usize> {
        let n = sums.len() - 1;
        self.best.clear();
        self.best.resize(n + 1, 0.0);
        self.parent.clear();
        self.parent.resize(n + 1, 0);
        self.queue.clear();
        self.queue.push((0, 1));
        let (best, queue) = (&mut self.best, &mut self.queue);
        let mut head = 0;
        for j in 1..=n {
            while head + 1 < queue.len() && queue[head + 1].1 as usize <= j {
                head += 1;
            }
            let i = queue[head].0 as usize;
            best[j] = best[i] + cost(&sums[i], &sums[j]) + price;
            self.parent[j] = i as u32;
            if j == n {
                break;
            }
            loop {
                let (rival, from) = queue[queue.len() - 1];
                let rival = rival as usize;
                let wins = |t: usize| {
                    best[j] + cost(&sums[j], &sums[t]) < best[rival] + cost(&sums[rival], &sums[t])
                };
                let at = (from as usize).max(j + 1);
                if wins(at) {
                    if queue.len() - 1 > head {
                        queue.pop();
                        continue;
                    }
                    queue.push((j as u32, at as u32));
                } else if let Some(t) = first(at, n, wins) {
                    queue.push((j as u32, t as u32));
                }
                break;
            }
        }
        let mut cuts = vec![n];
        let mut at = n;
        while at > 0 {
            at = self.parent[at] as usize;
            cuts.push(at);
        }
        cuts.reverse();
        cuts
    }
}

/// The first place after `at`, up to `n`, from which `holds` stays true; it does not hold at `at`.
fn first(at: usize, n: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut step) = (at, 1);
    let mut high = loop {
        let next = (low + step).min(n);
        if next == low {
            return None;
        }
        if holds(next) {
            break next;
        }
        low = next;
        step *= 2;
    };
    while high - low > 1 {
        let middle = low.midpoint(high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// Cuts into k clusters out of two clusterings that are cheapest at the same price, one with fewer and one with more.
fn splice(fewer: &Path, more: &Path, k: usize) -> Vec<usize> {
    let (a, b) = (&fewer.cuts, &more.cuts);
    let ahead = k - fewer.clusters();
    // A cluster of the one lies within a cluster of the other; there the paths can be exchanged.
    let i = (0..fewer.clusters()).find(|i| b[i + ahead + 1] <= a[i + 1]).unwrap_or(fewer.clusters() - 1);
    b[..=i + ahead].iter().chain(&a[i + 1..]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Least error by the plain recurrence over all cuts.
    fn brute(sums: &[Sum], k: usize) -> f64 {
        let n = sums.len() - 1;
        let mut best: Vec<f64> = (0..=n).map(|j| cost(&sums[0], &sums[j])).collect();
        for _ in 1..k {
            best = (0..=n)
                .map(|j| (0..=j).map(|i| best[i] + cost(&sums[i], &sums[j])).fold(f64::INFINITY, f64::min))
                .collect();
        }
        best[n]
    }

    fn total(sums: &[Sum], cuts: &[usize]) -> f64 {
        Path::new(cuts.to_vec(), sums).cost
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn cuts_are_the_best_there_are(
            steps in prop::collection::vec((0u32..400, 0u32..5), 2..60), k in 1usize..20, scale in -8i32..8, start in -3000i32..100
        ) {
            // Whole numbers and small weights make many ties, which is where prices jump over a number of clusters.
            let mut at = start;
            let values: Vec<f64> = steps.iter().map(|s| { at += s.0 as i32 / 100 + 1; f64::from(at) * 2f64.powi(scale) }).collect();
            let weights: Vec<f64> = steps.iter().map(|s| f64::from(s.1.max(1))).collect();
            let sums = sums(&values, &weights);
            for guess in [1e-9, 1.0, 1e9] {
                let (cuts, price) = Search::default().optimal(&sums, k, guess);
                prop_assert_eq!(cuts.len() - 1, k.min(values.len()));
                prop_assert!(cuts.windows(2).all(|c| c[0] < c[1]) && cuts[0] == 0 && *cuts.last().unwrap() == values.len());
                let (found, least) = (total(&sums, &cuts), brute(&sums, k.min(values.len())));
                let scale = sums[values.len()].second - sums[0].second;
                prop_assert!(found <= least + 1e-12 * scale, "{} clusters: {} instead of {}", k, found, least);
                for price in [price, 2.0 * price, 0.3 * price] {
                    prop_assert!(Search::default().bound(&sums, k, price) <= least + 1e-12 * scale);
                }
                let tight = k >= values.len() || Search::default().bound(&sums, k, price) >= least - 1e-9 * scale;
                prop_assert!(tight || k == 1);
            }
        }
    }

    #[test]
    fn ties_everywhere_are_spliced() {
        let values: Vec<f64> = (0..64).map(f64::from).collect();
        let sums = sums(&values, &[1.0; 64]);
        for k in 1..=64 {
            let (cuts, _) = Search::default().optimal(&sums, k, 0.3);
            assert_eq!(cuts.len(), k + 1);
            assert!((total(&sums, &cuts) - brute(&sums, k)).abs() < 1e-9, "{k}");
        }
    }
}
