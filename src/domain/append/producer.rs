//! Our own producer ids. Must not know what is produced under them.

use crate::domain::types::{ProducerId, TopicPartition};

/// Our producer id on a partition: far above the ids that brokers hand out, the same in every process and after every
/// restart. FNV-1a over `owner` (a mirror's name), topic, partition and, from the second on, the generation, in the upper half
/// of the positive range. An id's next generation is another id, for when the epochs of one are used up.
pub fn producer_id(owner: &str, partition: &TopicPartition, generation: i32) -> ProducerId {
    let number = partition.partition.to_be_bytes();
    let generation = match generation {
        0 => Vec::new(),
        later => later.to_be_bytes().to_vec(),
    };
    let parts = [
        owner.as_bytes(),
        &[0],
        partition.topic.as_bytes(),
        &[0],
        &number,
        &generation,
    ];
    let hash = parts
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let positive = i64::try_from(hash >> 2).unwrap_or(0);
    ProducerId((1 << 62) | positive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producer_ids_are_fixed_and_far_above_what_brokers_give() {
        let id = producer_id("eu-to-us", &TopicPartition::new("orders", 3), 0);
        assert_eq!(
            id,
            producer_id("eu-to-us", &TopicPartition::new("orders", 3), 0)
        );
        // A change of this number would make every mirror take its own batches for foreign ones.
        assert_eq!(id, ProducerId(PINNED));
        assert!(id.0 >= 1 << 62);
        for other in [
            producer_id("eu-to-us", &TopicPartition::new("orders", 4), 0),
            producer_id("eu-to-us", &TopicPartition::new("order", 3), 0),
            producer_id("eu-to-u", &TopicPartition::new("orders", 3), 0),
            producer_id("eu-to-us", &TopicPartition::new("orders", 3), 1),
            producer_id("eu-to-us", &TopicPartition::new("orders", 3), 2),
        ] {
            assert_ne!(id, other);
        }
    }

    const PINNED: i64 = 5_955_896_073_670_978_767;
}
