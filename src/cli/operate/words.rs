//! Errors and states in words for people. Must not decide anything.

use crate::domain::state::PartitionState;
use crate::wire::error_code::ErrorCode;

/// An error of a mirror call: name, number, and the words that came with it, or ours.
pub(super) fn refusal(code: ErrorCode, message: Option<&str>) -> String {
    let name = code.mirror_name().unwrap_or("unknown error");
    let words = message
        .filter(|message| !message.is_empty())
        .or_else(|| explained(code));
    words.map_or_else(
        || format!("{name} ({})", code.0),
        |words| format!("{name} ({}): {words}", code.0),
    )
}

/// What a code means to who operates mirrors.
const fn explained(code: ErrorCode) -> Option<&'static str> {
    Some(match code.0 {
        3 => "this mirror has no such topic",
        7 => "no answer in time; whether it was done is not known, truemirror describe shows it",
        14..=16 => {
            "the process that keeps the state of the mirror is being chosen or is loading it; try again in a few seconds"
        }
        42 => "the request makes no sense to the server",
        124 => "the state changed meanwhile; look at it with truemirror describe and try again",
        137 => "there is no such mirror; truemirror list names those there are",
        138 => "the topic belongs to another mirror that has not stopped it",
        139 => "the topic does not belong to this mirror",
        140 => "the topic is paused; resume it first",
        141 => "the topic is not paused",
        142 => "the topic is stopped, or is being stopped",
        143 => "the mirror has topics that are not stopped; stop them first",
        144 => "this is not allowed to you",
        145 => {
            "a partition is in a state that does not allow this, or changed meanwhile; look at it with truemirror describe"
        }
        146 => "the topic is not stopped",
        _ => return None,
    })
}

/// What a state means, where the name alone does not say it.
pub(super) const fn of_state(state: PartitionState) -> &'static str {
    match state {
        PartitionState::Unknown => "nothing is known of it yet",
        PartitionState::LogTruncation => "both logs are being compared",
        PartitionState::EpochFencing => "the source's leader changed, its log is being checked",
        PartitionState::Mirroring => "",
        PartitionState::Pausing => "the last answers are awaited",
        PartitionState::Paused => "until resumed",
        PartitionState::Stopping => "the last records are being copied",
        PartitionState::Stopped => "an ordinary, writable topic",
        PartitionState::Failed => "no reason is known",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_win_over_ours() {
        for (code, message, wanted) in [
            (
                140,
                None,
                "MIRROR_TOPIC_ALREADY_PAUSED (140): the topic is paused; resume it first",
            ),
            (
                140,
                Some("since noon"),
                "MIRROR_TOPIC_ALREADY_PAUSED (140): since noon",
            ),
            (
                140,
                Some(""),
                "MIRROR_TOPIC_ALREADY_PAUSED (140): the topic is paused; resume it first",
            ),
            (-1, None, "UNKNOWN_SERVER_ERROR (-1)"),
            (999, Some("x"), "unknown error (999): x"),
            (134, None, "READ_ONLY_TOPIC (134)"),
        ] {
            assert_eq!(refusal(ErrorCode(code), message), wanted);
        }
    }
}
