//! What a bundle must hold to be run, checked before anything runs: the manifest against the model, then the packages against
//! both.

use std::collections::BTreeMap;
use std::ops::Range;

use anemone_ane::{CacheKind, CachePlan, ChunkPlan, Pass, StatePlan};
use anemone_bundle::{Bundle, Manifest, PackageEntry, Role};
use anemone_mil::{Executor, Signature, check_model};
use anemone_models::{Mixer, Rope, Stack};
use anemone_tensor::Tensor;

use super::ports::Expected;
use crate::Error;

/// Elements of all caches together: 8 GiB of f32.
const CACHE_ELEMENTS: usize = 1 << 31;

/// A bundle whose parts fit each other and the model.
pub(super) struct Contract {
    /// At least one; the shortest first.
    pub(super) passes: Vec<Pass>,
    /// They hold the model's layers in order.
    pub(super) chunks: Vec<ChunkContract>,
    /// They give the vocabulary in order.
    pub(super) heads: Vec<HeadContract>,
    /// `[vocab_size, hidden_size]`, fp16.
    pub(super) embedding: Tensor,
}

/// A package of layers.
pub(super) struct ChunkContract {
    pub(super) file: String,
    pub(super) plan: ChunkPlan,
    /// Module path of its last layer.
    pub(super) last: String,
    /// A function for each pass of the bundle: its name and what it takes and gives.
    pub(super) functions: BTreeMap<Pass, (String, Expected)>,
}

/// A package of rows of the head.
pub(super) struct HeadContract {
    pub(super) file: String,
    /// Rows of the vocabulary.
    pub(super) rows: Range<usize>,
    /// A function for one column and for each length of a verification.
    pub(super) functions: BTreeMap<usize, (String, Expected)>,
}

impl Contract {
    /// Checks a bundle of `stack`; `ropes` are the stack's rotations in order. Packages are read but not loaded.
    pub(super) fn check(
        bundle: &Bundle,
        stack: &Stack,
        ropes: &[Rope],
        executor: &mut dyn Executor,
    ) -> Result<Self, Error> {
        let check = Check { bundle, manifest: bundle.manifest(), stack };
        let passes = check.passes()?;
        check.layers()?;
        check.states()?;
        check.cache_size()?;
        let (chunk_files, head_files) = check.files()?;
        let mut chunks = Vec::new();
        for ((at, package), (i, plan)) in
            chunk_files.into_iter().zip(check.manifest.plan.chunks.iter().enumerate())
        {
            let mut functions = BTreeMap::new();
            for pass in &passes {
                let used = check.ropes(plan, ropes);
                let expected = Expected::chunk(plan, stack.hidden_size, &used, pass.tokens());
                let expected = expected.ok_or_else(|| {
                    check.wrong(&format!("plan.chunks[{i}]"), "needs inputs of one name in two shapes")
                })?;
                let name = if passes.len() == 1 { "main".into() } else { pass.name() };
                functions.insert(*pass, (name, expected));
            }
            check.entries(at, package, functions.values())?;
            let last = plan.layers.clone().last().and_then(|layer| stack.blocks.get(layer));
            let last = last.map(|block| block.path.clone()).unwrap_or_default();
            chunks.push(ChunkContract { file: package.file.clone(), plan: plan.clone(), last, functions });
        }
        let verify = passes.iter().filter(|p| matches!(p, Pass::Verify(_)));
        let several = verify.clone().next().is_some();
        let mut heads = Vec::new();
        for ((at, package), rows) in head_files.into_iter().zip(check.slices()?) {
            let mut functions = BTreeMap::new();
            for pass in [&Pass::Decode].into_iter().chain(verify.clone()) {
                let name = if several { pass.name() } else { "main".into() };
                let expected = Expected::head(stack.hidden_size, rows.len(), pass.tokens());
                functions.insert(pass.tokens(), (name, expected));
            }
            check.entries(at, package, functions.values())?;
            check.head_rows(package, rows)?;
            heads.push(HeadContract { file: package.file.clone(), rows: rows.clone(), functions });
        }
        let embedding = check.embedding()?;
        for chunk in &chunks {
            check.package(&chunk.file, chunk.functions.values(), executor)?;
        }
        for head in &heads {
            check.package(&head.file, head.functions.values(), executor)?;
        }
        Ok(Self { passes, chunks, heads, embedding })
    }
}

/// How a loaded function is not the one that was checked; `None` when it is.
pub(super) fn changed(
    bundle: &Bundle,
    file: &str,
    name: &str,
    expected: &Expected,
    found: &Signature,
) -> Option<Error> {
    expected.differs_from(found).map(|d| unfit(bundle, format!("{file}: function `{name}` {d}")))
}

fn unfit(bundle: &Bundle, problem: String) -> Error {
    Error::Bundle { bundle: bundle.dir().display().to_string(), problem }
}

struct Check<'a> {
    bundle: &'a Bundle,
    manifest: &'a Manifest,
    stack: &'a Stack,
}

impl Check<'_> {
    fn wrong(&self, key: &str, problem: &str) -> Error {
        unfit(self.bundle, format!("manifest.json: `{key}` {problem}"))
    }

    fn passes(&self) -> Result<Vec<Pass>, Error> {
        let (options, max) = (&self.manifest.options, self.stack.max_position_embeddings);
        if options.ctx == 0 || options.ctx > max {
            return Err(
                self.wrong("options.ctx", &format!("is {}, expected 1 to the model's {max}", options.ctx))
            );
        }
        let wrong = |problem: String| self.wrong("options.passes", &problem);
        let mut passes = options.passes.clone();
        passes.sort_by_key(|p| p.tokens());
        if passes.is_empty() {
            return Err(wrong("is empty".into()));
        }
        if let Some(pass) = passes.iter().find(|p| !(1..=options.ctx).contains(&p.tokens())) {
            return Err(wrong(format!(
                "has {} tokens in `{}`, expected 1 to {}",
                pass.tokens(),
                pass.name(),
                options.ctx
            )));
        }
        if let Some(pass) = passes.iter().find(|p| passes.iter().filter(|q| q == p).count() > 1) {
            return Err(wrong(format!("has `{}` twice", pass.name())));
        }
        Ok(passes)
    }

    /// Chunks hold the layers in order, with the caches that those have.
    fn layers(&self) -> Result<(), Error> {
        let (chunks, blocks) = (&self.manifest.plan.chunks, &self.stack.blocks);
        let mut next = 0;
        for (i, chunk) in chunks.iter().enumerate() {
            let (key, layers) = (format!("plan.chunks[{i}]"), &chunk.layers);
            if layers.start != next || layers.is_empty() || layers.end > blocks.len() {
                let problem =
                    format!("is {layers:?}, expected some of the {} layers from {next} on", blocks.len());
                return Err(self.wrong(&format!("{key}.layers"), &problem));
            }
            next = layers.end;
            if chunk.caches.len() != layers.len() {
                let problem = format!("has {} entries for {} layers", chunk.caches.len(), layers.len());
                return Err(self.wrong(&format!("{key}.caches"), &problem));
            }
            for (n, (layer, cache)) in layers.clone().zip(&chunk.caches).enumerate() {
                let key = format!("{key}.caches[{n}]");
                let block = blocks.get(layer).map(|b| &b.mixer);
                block.map_or(Ok(()), |mixer| self.cache(&key, layer, mixer, cache))?;
            }
        }
        if next == blocks.len() {
            return Ok(());
        }
        let problem = format!("holds layers up to {next}, and the model has {}", blocks.len());
        Err(self.wrong("plan.chunks", &problem))
    }

    fn cache(&self, key: &str, layer: usize, mixer: &Mixer, cache: &CachePlan) -> Result<(), Error> {
        let same = |name: &str, found: String, expected: String| {
            let problem = format!("is {found}, expected {expected} for layer {layer}");
            if found == expected { Ok(()) } else { Err(self.wrong(&format!("{key}.{name}"), &problem)) }
        };
        let number =
            |name: &str, found: usize, expected: usize| same(name, found.to_string(), expected.to_string());
        match (mixer, cache) {
            (Mixer::Attention(a), CachePlan::Attention { layer: of, rows, width, window, ring }) => {
                number("attention.layer", *of, layer)?;
                number("attention.width", *width, a.kv_heads * a.head_dim)?;
                same("attention.window", format!("{window:?}"), format!("{:?}", a.window))?;
                let (ctx, kind) = (self.manifest.options.ctx, self.manifest.options.cache);
                let least = window.filter(|_| *ring).unwrap_or(ctx).max(1);
                if *ring && window.is_none() {
                    return same(
                        "attention.ring",
                        "true".into(),
                        "false (it sees all earlier tokens)".into(),
                    );
                }
                match kind {
                    CacheKind::Io => number("attention.rows", *rows, least),
                    CacheKind::State if *rows >= least => Ok(()),
                    CacheKind::State => same("attention.rows", rows.to_string(), format!("{least} or more")),
                }
            }
            (Mixer::ShortConv(c), CachePlan::ShortConv { layer: of, width, reach }) => {
                number("short_conv.layer", *of, layer)?;
                number("short_conv.width", *width, self.stack.hidden_size)?;
                number("short_conv.reach", *reach, c.taps.saturating_sub(1))
            }
            (mixer, _) => {
                let expected = if matches!(mixer, Mixer::Attention(_)) { "attention" } else { "short_conv" };
                Err(self.wrong(key, &format!("is of another kind, expected `{expected}` for layer {layer}")))
            }
        }
    }

    /// With states, each attention layer is in one of its chunk, of the shape its cache has; else there are none.
    fn states(&self) -> Result<(), Error> {
        for (i, chunk) in self.manifest.plan.chunks.iter().enumerate() {
            let key = format!("plan.chunks[{i}].states");
            let mut held: Vec<usize> = chunk.states.iter().flat_map(|s| s.layers.iter().copied()).collect();
            held.sort_unstable();
            let attention = |c: &CachePlan| match c {
                CachePlan::Attention { layer, .. } if self.manifest.options.cache == CacheKind::State => {
                    Some(*layer)
                }
                _ => None,
            };
            let expected: Vec<usize> = chunk.caches.iter().filter_map(attention).collect();
            if held != expected {
                return Err(self.wrong(&key, &format!("hold layers {held:?}, expected {expected:?}")));
            }
            for (n, state) in chunk.states.iter().enumerate() {
                self.state(&format!("{key}[{n}]"), chunk, state)?;
            }
        }
        Ok(())
    }

    fn state(&self, key: &str, chunk: &ChunkPlan, state: &StatePlan) -> Result<(), Error> {
        let mut channels = 0usize;
        for cache in &chunk.caches {
            let CachePlan::Attention { layer, rows, width, ring, .. } = *cache else { continue };
            if !state.layers.contains(&layer) {
                continue;
            }
            channels = channels.saturating_add(width.saturating_mul(2));
            if (state.rows, state.ring) != (rows, ring) {
                let problem = format!(
                    "has {} rows (ring: {}), but the cache of layer {layer} {rows} (ring: {ring})",
                    state.rows, state.ring
                );
                return Err(self.wrong(key, &problem));
            }
        }
        if state.channels == channels {
            return Ok(());
        }
        Err(self.wrong(&format!("{key}.channels"), &format!("is {}, expected {channels}", state.channels)))
    }

    /// The host makes room for the caches before it has seen a function run.
    fn cache_size(&self) -> Result<(), Error> {
        let size = |c: &CachePlan| match *c {
            CachePlan::Attention { rows, width, .. } => rows.saturating_mul(width).saturating_mul(2),
            CachePlan::ShortConv { width, reach, .. } => width.saturating_mul(reach),
        };
        let caches = self.manifest.plan.chunks.iter().flat_map(|c| &c.caches);
        let elements = caches.map(size).fold(0, usize::saturating_add);
        if elements <= CACHE_ELEMENTS {
            return Ok(());
        }
        let problem = format!(
            "is {}, for which the caches take {elements} elements; the most is {CACHE_ELEMENTS}: convert with a smaller --ctx",
            self.manifest.options.ctx
        );
        Err(self.wrong("options.ctx", &problem))
    }

    /// The head's slices, which are the vocabulary in order.
    fn slices(&self) -> Result<&[Range<usize>], Error> {
        let (slices, vocab) = (&self.manifest.plan.head, self.stack.vocab_size);
        let mut next = 0;
        for (i, slice) in slices.iter().enumerate() {
            if slice.start != next || slice.is_empty() || slice.end > vocab {
                let problem = format!("is {slice:?}, expected some of the {vocab} rows from {next} on");
                return Err(self.wrong(&format!("plan.head[{i}]"), &problem));
            }
            next = slice.end;
        }
        if next == vocab {
            return Ok(slices);
        }
        Err(self.wrong("plan.head", &format!("covers {next} rows, and the vocabulary has {vocab}")))
    }

    /// Packages of chunks and of head slices with their place, as many as the plan has.
    fn files(&self) -> Result<(Vec<Entry<'_>>, Vec<Entry<'_>>), Error> {
        let of =
            |role| self.manifest.packages.iter().enumerate().filter(move |(_, p)| p.role == role).collect();
        let (chunks, heads): (Vec<Entry<'_>>, Vec<Entry<'_>>) = (of(Role::Chunk), of(Role::Head));
        let plan = &self.manifest.plan;
        for (what, found, expected) in
            [("chunk", chunks.len(), plan.chunks.len()), ("head", heads.len(), plan.head.len())]
        {
            if found != expected {
                let problem = format!("has {found} entries with role `{what}`, and the plan {expected}");
                return Err(self.wrong("packages", &problem));
            }
        }
        Ok((chunks, heads))
    }

    /// The manifest's word on each function.
    fn entries<'f>(
        &self,
        at: usize,
        package: &PackageEntry,
        functions: impl Iterator<Item = &'f (String, Expected)>,
    ) -> Result<(), Error> {
        for (name, expected) in functions {
            let key = format!("packages[{at}].functions.{name}");
            let entry = package.functions.get(name).ok_or_else(|| {
                let problem = format!("is absent, and `options.passes` needs it in {}", package.file);
                self.wrong(&key, &problem)
            })?;
            if let Some((part, difference)) = expected.differs_from_entry(entry) {
                return Err(self.wrong(&format!("{key}.{part}"), &difference));
            }
        }
        Ok(())
    }

    /// The package itself.
    fn package<'f>(
        &self,
        file: &str,
        functions: impl Iterator<Item = &'f (String, Expected)>,
        executor: &mut dyn Executor,
    ) -> Result<(), Error> {
        let path = self.bundle.path(file);
        check_model(&path).map_err(|e| unfit(self.bundle, chain(&e)))?;
        let signatures = executor.signatures(&path);
        let signatures = signatures.map_err(|e| unfit(self.bundle, chain(&*e)))?;
        for (name, expected) in functions {
            let signature = signatures.get(name).ok_or_else(|| {
                let present: Vec<String> = signatures.keys().map(|n| format!("`{n}`")).collect();
                unfit(self.bundle, format!("{file}: has no function `{name}`; it has {}", present.join(", ")))
            })?;
            if let Some(error) = changed(self.bundle, file, name, expected, signature) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Slices look alike; the weight table says which rows of the head a package has.
    fn head_rows(&self, package: &PackageEntry, rows: &Range<usize>) -> Result<(), Error> {
        let name = &self.stack.head.name;
        let pieces = self.manifest.weights.get(name).into_iter().flatten();
        let mut held = pieces.filter(|p| p.package == package.file).peekable();
        let other = held.peek().is_none();
        if !other && held.all(|p| p.record.rows == *rows) {
            return Ok(());
        }
        let problem =
            format!("does not give rows {rows:?} of the head to {}, as `plan.head` does", package.file);
        Err(self.wrong(&format!("weights.{name}"), &problem))
    }

    fn embedding(&self) -> Result<Tensor, Error> {
        let entry = self.manifest.host.get("embedding");
        let entry = entry.ok_or_else(|| self.wrong("host.embedding", "is absent"))?;
        let expected = [self.stack.vocab_size, self.stack.hidden_size];
        if entry.shape != expected {
            let problem = format!("is {:?}, expected {expected:?}", entry.shape);
            return Err(self.wrong("host.embedding.shape", &problem));
        }
        if entry.tensor != self.stack.embedding.name {
            let problem = format!("is `{}`, expected `{}`", entry.tensor, self.stack.embedding.name);
            return Err(self.wrong("host.embedding.tensor", &problem));
        }
        self.bundle.host_tensor("embedding").map_err(|e| unfit(self.bundle, chain(&e)))
    }

    /// Index and half size of the rotations that a chunk's layers use.
    fn ropes(&self, plan: &ChunkPlan, ropes: &[Rope]) -> Vec<(usize, usize)> {
        let blocks = self.stack.blocks.iter().skip(plan.layers.start).take(plan.layers.len());
        let used =
            |rope: &Rope| blocks.clone().any(|b| matches!(&b.mixer, Mixer::Attention(a) if a.rope == *rope));
        ropes.iter().enumerate().filter(|(_, rope)| used(rope)).map(|(i, rope)| (i, rope.dim / 2)).collect()
    }
}

type Entry<'a> = (usize, &'a PackageEntry);

/// An error and its causes in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
