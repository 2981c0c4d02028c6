//! The rules, each in a file.

mod account;
mod checkpoint;
mod complete;
mod conservation;
mod cuts;
mod drawn;
mod events;
mod filter;
mod frames;
mod health;
mod lifecycle;
mod loss;
mod mapped;
mod packet_crc;
mod packet_order;
mod permitted;
mod regions;
mod residency;
mod residency_sets;
mod sequence;
mod time;
mod virtual_time;
mod windows;

use super::Rule;

/// The rules about the file as such.
pub fn integrity() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(complete::Complete),
        Box::new(packet_crc::PacketCrc),
        Box::new(packet_order::PacketOrder::default()),
        Box::new(conservation::Conservation),
        Box::new(account::Account::default()),
        Box::new(loss::Loss::default()),
        Box::new(health::Health),
        Box::new(windows::Windows::default()),
    ]
}

/// Every rule, in the order of the report.
pub fn all() -> Vec<Box<dyn Rule>> {
    let mut rules = integrity();
    rules.extend([
        Box::new(sequence::Sequence::default()) as Box<dyn Rule>,
        Box::new(time::Time::default()),
        Box::new(virtual_time::VirtualTime::default()),
        Box::new(events::Events::default()),
        Box::new(filter::FilterRule::default()),
        Box::new(regions::Regions::default()),
        Box::new(checkpoint::Checkpoint::default()),
        Box::new(lifecycle::Lifecycle),
        Box::new(mapped::Mapped),
        Box::new(permitted::Permitted),
        Box::new(residency::Residency::default()),
    ]);
    rules
}

/// Every rule, including those that need canonical pages.
pub fn with_pages() -> Vec<Box<dyn Rule>> {
    let mut rules = all();
    rules.push(Box::new(frames::Frames::default()));
    rules
}
