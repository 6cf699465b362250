//! Which state partition answers for a key: by name, as KIP-1279 does it. Must not know who holds a state partition.

use super::types::TopicPartition;

/// Java's `String.hashCode`: over UTF-16 code units, wrapping.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// `Utils.abs(hash) % partitions`: Kafka's `abs` makes 0 of the smallest int. 0 if there are no partitions.
fn route(text: &str, partitions: i32) -> i32 {
    java_hash(text)
        .checked_abs()
        .unwrap_or(0)
        .checked_rem(partitions)
        .unwrap_or(0)
}

/// The state partition of everything that concerns a whole mirror or a topic of it.
pub fn of_mirror(mirror: &str, partitions: i32) -> i32 {
    route(mirror, partitions)
}

/// The state partition of one mirrored partition. The topic goes by its name: an id would change with a topic that is made
/// anew at the destination.
pub fn of_partition(mirror: &str, partition: &TopicPartition, partitions: i32) -> i32 {
    let text = format!("{mirror}:{}:{}", partition.topic, partition.partition);
    route(&text, partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_javas() {
        // What Java 17 prints for `"...".hashCode()`.
        for (text, hash) in [
            ("", 0),
            ("a", 97),
            ("eu-to-us", 2_087_694_291),
            ("polygenelubricants", i32::MIN),
            ("Grüße", 69_215_351),
            ("\u{1F600}", 1_772_899),
        ] {
            assert_eq!(java_hash(text), hash, "{text:?}");
        }
    }

    #[test]
    fn the_smallest_hash_goes_to_partition_0() {
        assert_eq!(of_mirror("polygenelubricants", 50), 0);
        assert_eq!(of_mirror("anything", 0), 0);
    }

    #[test]
    fn partitions_of_one_topic_are_spread() {
        let found: std::collections::BTreeSet<i32> = (0..50)
            .map(|index| of_partition("m", &TopicPartition::new("t", index), 50))
            .collect();
        assert!(found.len() > 20, "{found:?}");
        assert!(found.iter().all(|index| (0..50).contains(index)));
    }
}
