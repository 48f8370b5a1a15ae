//! The reasons why a class cannot be added to a tree, changed or removed.

use super::{DEPTH_MAX, PRIORITIES};

/// The reason why a tree was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// There is no room for another class.
    TooManyClasses,
    /// The class would be deeper than [`DEPTH_MAX`].
    TooDeep,
    /// There is no class of this index.
    NoSuchClass,
    /// A leaf cannot have children.
    ParentIsLeaf,
    /// A class that has children cannot go before them.
    HasChildren,
    /// A class cannot go while packets wait in it.
    NotEmpty,
    /// There is no such priority.
    Priority,
    /// The quantum is 0: a turn must pass some bytes.
    Quantum,
}

impl std::fmt::Display for TreeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TreeError::TooManyClasses => {
                write!(f, "there is no room for another class; give the tree more at start")
            }
            TreeError::TooDeep => write!(f, "classes nest at most {DEPTH_MAX} deep; take levels out"),
            TreeError::NoSuchClass => write!(f, "there is no such class"),
            TreeError::ParentIsLeaf => write!(f, "the parent holds packets itself; make it an inner class"),
            TreeError::HasChildren => write!(f, "the class has children; remove them first"),
            TreeError::NotEmpty => write!(f, "packets wait in the class; let it drain first"),
            TreeError::Priority => write!(f, "a priority is 0 to {}", PRIORITIES - 1),
            TreeError::Quantum => {
                write!(f, "the quantum must be more than 0 bytes; one full frame is a good one")
            }
        }
    }
}

impl std::error::Error for TreeError {}
