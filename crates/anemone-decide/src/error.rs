use crate::ParseError;

/// Why a request cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The state is null.
    #[error("the state is null; give a text, an object or a list of turns")]
    NoState,
    /// The questions are not an object.
    #[error("the questions are {found}, expected an object of id to definition")]
    NotQuestions {
        /// What they are.
        found: &'static str,
    },
    /// A question's definition is not valid.
    #[error("question '{id}': {problem}")]
    Question {
        /// Its id.
        id: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A score question has a null among its levels.
    #[error("score question '{id}' has a null level at index {index}; give every level a description")]
    NullLevel {
        /// Its id.
        id: String,
        /// Place of the level.
        index: usize,
    },
    /// The options of a question do not fit the token budget.
    #[error(
        "question '{id}': {fit} of {options} options fit {max_len} tokens; ask with fewer or shorter options, or raise the budgets (max_len, head_max_len)"
    )]
    Budget {
        /// Its id.
        id: String,
        /// Options whose marker is inside the limit.
        fit: usize,
        /// Options asked.
        options: usize,
        /// The limit.
        max_len: usize,
    },
    /// No model has this name.
    #[error("unknown model {model}; choose one of {choices}")]
    UnknownModel {
        /// The name, in quotes.
        model: String,
        /// The names and aliases there are.
        choices: String,
    },
    /// A model could not be loaded.
    #[error("the model '{model}' cannot be loaded: {problem}")]
    Load {
        /// Its name.
        model: String,
        /// What went wrong.
        problem: String,
    },
    /// Models that are at work leave no room for another one.
    #[error("other models are at work and '{model}' does not fit in memory beside them, try again later")]
    NoRoom {
        /// The model to be loaded.
        model: String,
    },
    /// An argument of the call is out of range.
    #[error("{name} {problem}")]
    Argument {
        /// Its name.
        name: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A key of a configuration or calibration file is absent, of the wrong type or out of range.
    #[error("{file}: `{key}` {problem}")]
    Config {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The tokenizer lacks a token the prompts are made of.
    #[error("the tokenizer has no {key} `{token}`; take it from the same download as the model")]
    Token {
        /// Key of `tokenizer_config.json`.
        key: &'static str,
        /// The token it names.
        token: String,
    },
    /// A text is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] ParseError),
    /// The snapshot cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] anemone_checkpoint::Error),
    /// The snapshot is not a decision model.
    #[error(transparent)]
    Model(#[from] anemone_models::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] anemone_cpu::Error),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] anemone_session::Error),
    /// A converted model cannot be read.
    #[error(transparent)]
    Converted(#[from] anemone_bundle::Error),
    /// A converted model is not what its model asks for, or cannot do what is asked.
    #[error("{bundle}: {problem}")]
    Bundle {
        /// The directory.
        bundle: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// What runs a converted model failed.
    #[error("{what}")]
    Executor {
        /// The package or function.
        what: String,
        /// What it says.
        #[source]
        source: anemone_mil::ExecutorError,
    },
    /// A recorded reference cannot be used.
    #[error("{at} {problem}")]
    Reference {
        /// Place in the file.
        at: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A converted model's outputs are not finite.
    #[error(
        "row {row}: the outputs of function `{function}` are not finite; its activations are beyond fp16: run the checkpoint on the CPU engine"
    )]
    NotFinite {
        /// Its place in the call.
        row: usize,
        /// The function.
        function: String,
    },
}

impl Error {
    pub(crate) fn question(id: &str, problem: impl Into<String>) -> Self {
        Self::Question { id: id.to_owned(), problem: problem.into() }
    }

    /// Whether the request is at fault, rather than the model or the machine.
    pub fn is_request(&self) -> bool {
        matches!(
            self,
            Self::NoState
                | Self::NotQuestions { .. }
                | Self::Question { .. }
                | Self::NullLevel { .. }
                | Self::Budget { .. }
                | Self::UnknownModel { .. }
                | Self::Argument { .. }
                | Self::Json(_)
        )
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
