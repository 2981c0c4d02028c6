//! Several consumers as one.

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::space::Issue;
use crate::trace::{Damage, Event, PacketSeen, Trace};
use crate::units::CanonPage;

/// Passes everything on to each of several consumers of references. They get no renewals, no reads
/// and writes of files, and times that do not go back.
pub struct Tee<'c> {
    consumers: Vec<&'c mut dyn Consumer>,
}

impl<'c> Tee<'c> {
    /// Consumers, in the order in which they get everything.
    pub fn new(consumers: Vec<&'c mut dyn Consumer>) -> Self {
        Tee { consumers }
    }

    fn each(&mut self, mut of: impl FnMut(&mut dyn Consumer) -> Result<()>) -> Result<()> {
        self.consumers
            .iter_mut()
            .try_for_each(|consumer| of(&mut **consumer))
    }
}

impl Consumer for Tee<'_> {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        self.each(|consumer| consumer.begin(trace))
    }

    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        self.each(|consumer| consumer.packet(packet))
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.each(|consumer| consumer.references(batch))
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        self.each(|consumer| consumer.event(event, world, issues))
    }

    fn follows_freed(&self) -> bool {
        let mut consumers = self.consumers.iter();
        consumers.all(|consumer| consumer.follows_freed())
    }

    fn freed(&mut self, pages: &[CanonPage], world: &World) -> Result<()> {
        self.each(|consumer| consumer.freed(pages, world))
    }

    fn damage(&mut self, damage: &Damage) -> Result<()> {
        self.each(|consumer| consumer.damage(damage))
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        self.each(|consumer| consumer.finish(trace, outcome))
    }
}
