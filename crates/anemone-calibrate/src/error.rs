/// Why a model cannot be calibrated or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine stopped.
    #[error(transparent)]
    Engine(#[from] anemone_cpu::Error),
    /// The moments give no factor.
    #[error("{tensor}: {source}")]
    Factor {
        /// Weight of the map.
        tensor: String,
        /// Why.
        source: anemone_palettize::Error,
    },
    /// What runs the model failed in a way of its own.
    #[error("{0}")]
    Run(String),
    /// The text had no effect.
    #[error("the calibration text has no token; give a longer one")]
    NoTokens,
    /// No choice of bits gets there.
    #[error("{0}")]
    Target(String),
}
