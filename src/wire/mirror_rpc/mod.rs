//! The mirror calls of KIP-1279, all in version 0, flexible from 0. Must not decide what a call means.
//!
//! Keys, fields and numbers are those of the KIP's page of June 2026 where it has them (ReadMirrorStates, WriteMirrorStates)
//! and of the prototype of July 2026 for the others. What is ours beyond them stands in tagged fields from tag 1000 on, so
//! that it never meets a later field of the KIP: a peer that does not know them reads over them, and gets their defaults.

mod changes;
mod states;
mod views;

use std::sync::Arc;

pub use self::changes::*;
pub use self::states::*;
pub use self::views::*;
use super::error_code::ErrorCode;
use super::schema::Message;

/// What every answer to a mirror call has on top.
pub trait MirrorAnswer: Message + Default {
    /// The error of the call as a whole; 0 if there was none. Topics and partitions have errors of their own.
    fn error_code(&self) -> ErrorCode;

    /// The error in words.
    fn error_message(&self) -> Option<&Arc<str>>;

    /// An answer that says only that the call as a whole failed.
    fn refused(code: ErrorCode, message: Option<Arc<str>>) -> Self;
}

/// An answer that has the results of topics, and nothing else.
pub trait TopicAnswer: MirrorAnswer {
    /// The answer with these results; the error is that of the call as a whole.
    fn of_topics(
        error_code: ErrorCode,
        error_message: Option<Arc<str>>,
        topics: Vec<MirrorTopicResult>,
    ) -> Self;
}

macro_rules! mirror_answers {
    ($($answer:ident)+) => {$(
        impl MirrorAnswer for $answer {
            fn error_code(&self) -> ErrorCode {
                self.error_code
            }

            fn error_message(&self) -> Option<&Arc<str>> {
                self.error_message.as_ref()
            }

            fn refused(error_code: ErrorCode, error_message: Option<Arc<str>>) -> Self {
                Self {
                    error_code,
                    error_message,
                    ..Self::default()
                }
            }
        }
    )+};
}

mirror_answers! {
    StartMirrorTopicsResponse StopMirrorTopicsResponse ListClusterMirrorsResponse DescribeClusterMirrorsResponse
    ReadMirrorStatesResponse WriteMirrorStatesResponse PauseMirrorTopicsResponse ResumeMirrorTopicsResponse
    DeleteClusterMirrorResponse RecoverMirrorTopicsResponse
}
