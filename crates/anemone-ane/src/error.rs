/// Why a stack cannot be lowered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A part of the model has no Neural Engine form.
    #[error("{path}: {what} cannot be converted for the Neural Engine; {remedy}")]
    Unsupported {
        /// Module path.
        path: String,
        /// What it is.
        what: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// An option does not fit the model.
    #[error("{option} {problem}")]
    Option {
        /// The flag.
        option: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A weight cannot be described.
    #[error(transparent)]
    Model(#[from] anemone_models::Error),
    /// The graph is not well formed; a defect of the lowering.
    #[error(transparent)]
    Mil(#[from] anemone_mil::Error),
}
