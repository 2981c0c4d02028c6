//! Which set each address space is in, if there are several sets.
//!
//! The number of a new set is *given* by the kernel. What is *predicted* is whether an address
//! space gets a new set, shares one, or has set 0.

use crate::model::Sets;
use crate::spaces::STACK_MASK;
use std::collections::HashMap;

/// A set, and who is in it.
#[derive(Clone, Copy, Debug)]
struct Users {
    /// The control group that its first address space was made in.
    group: u64,
    /// Address spaces.
    many: usize,
}

/// The sets of a trace, and who is in them.
pub struct Scopes {
    sets: Sets,
    /// Tasks that give an address space its set, by their stacks: its mm_struct and its control
    /// group.
    entering: HashMap<u64, (u64, u64)>,
    /// By mm_struct.
    entered: HashMap<u64, u32>,
    /// By the number of an address space.
    of: HashMap<u32, u32>,
    /// All sets so far, but set 0.
    users: HashMap<u32, Users>,
}

impl Scopes {
    /// Set 0 only, so far.
    pub fn new(sets: Sets) -> Self {
        Scopes {
            sets,
            entering: HashMap::new(),
            entered: HashMap::new(),
            of: HashMap::new(),
            users: HashMap::new(),
        }
    }

    /// `vmtrace_rs_enter(mm, group)`, by the task on this stack.
    pub fn entering(&mut self, stack: u64, mm: u64, group: u64) {
        self.entering.insert(stack & STACK_MASK, (mm, group));
    }

    /// It returns the number of the set.
    ///
    /// # Errors
    ///
    /// It must be another set.
    pub fn entered(&mut self, stack: u64, set: u32) -> Result<(), String> {
        let Some((mm, group)) = self.entering.remove(&(stack & STACK_MASK)) else {
            return Err(format!("set {set} is given to nobody"));
        };
        let before = self.entered.insert(mm, set);
        let is_new = !self.users.contains_key(&set);
        if set > 0 {
            let none = Users { group, many: 0 };
            self.users.entry(set).or_insert(none).many += 1;
        }
        let fits = match self.sets {
            Sets::One => set == 0,
            Sets::Process => set > 0 && is_new,
            Sets::Cgroup => set > 0 && self.is_of_group(set, group),
        };
        if !fits {
            return Err(format!(
                "an address space of group {group} gets set {set}, of sets for {:?}",
                self.sets
            ));
        }
        match before {
            Some(before) => Err(format!(
                "an address space has set {before}, and gets set {set}"
            )),
            None => Ok(()),
        }
    }

    /// Whether this may be the set of a control group, no other set of which has users.
    fn is_of_group(&self, set: u32, group: u64) -> bool {
        let mut of_group = self.users.iter().filter(|(_, u)| u.group == group);
        of_group.all(|(other, u)| *other == set || u.many == 0)
            && self.users.get(&set).is_some_and(|u| u.group == group)
    }

    /// An address space has its number. Returns its set; `None` if it has been given none.
    pub fn numbered(&mut self, mm: u64, number: u32) -> Option<u32> {
        let set = *self.entered.get(&mm)?;
        self.of.insert(number, set);
        Some(set)
    }

    /// `vmtrace_rs_leave(mm)`: it is in its set no more. Returns the set, if nobody else is in it. But
    /// one may be on the way into the set of a control group.
    pub fn leaving(&mut self, mm: u64) -> Option<u32> {
        let set = self.entered.remove(&mm)?;
        let users = self.users.get_mut(&set)?;
        users.many = users.many.saturating_sub(1);
        (users.many == 0).then_some(set)
    }

    /// Whether nobody is in a set.
    pub fn is_empty(&self, set: u32) -> bool {
        self.users.get(&set).is_some_and(|u| u.many == 0)
    }

    /// Whether nobody is in a set or can be on the way into it.
    pub fn is_over(&self, set: u32) -> bool {
        let on_the_way = |u: &Users| {
            let mut groups = self.entering.values().map(|(_, group)| *group);
            self.sets == Sets::Cgroup && groups.any(|group| group == u.group)
        };
        let users = self.users.get(&set);
        users.is_some_and(|u| u.many == 0 && !on_the_way(u))
    }

    /// All address spaces that have another set than set 0, in order, and their sets.
    pub fn table(&self) -> Vec<(u32, u32)> {
        let several = self.of.iter().filter(|(_, set)| **set > 0);
        let mut table: Vec<_> = several.map(|(mm, set)| (*mm, *set)).collect();
        table.sort_unstable();
        table
    }

    /// The set of an address space.
    pub fn of(&self, mm: u32) -> u32 {
        self.of.get(&mm).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACKS: [u64; 2] = [0xffff_8880_0000_4000, 0xffff_8880_0000_8000];

    fn enter(s: &mut Scopes, mm: u64, group: u64, set: u32) -> bool {
        s.entering(STACKS[0] + 8, mm, group);
        s.entered(STACKS[0], set).is_ok()
    }

    #[test]
    fn one_set_is_that_of_all() {
        let mut s = Scopes::new(Sets::One);
        assert!(enter(&mut s, 100, 7, 0));
        assert_eq!(s.numbered(100, 3), Some(0));
        assert_eq!((s.of(3), s.numbered(200, 4)), (0, None));
        assert_eq!((s.leaving(100), s.is_over(0)), (None, false));
        assert!(!enter(&mut s, 100, 7, 1));
        assert!(s.entered(STACKS[1], 0).is_err());
    }

    #[test]
    fn each_process_has_a_set_that_nobody_had() {
        let mut s = Scopes::new(Sets::Process);
        assert!(enter(&mut s, 100, 7, 1) && enter(&mut s, 200, 7, 2));
        assert_eq!((s.numbered(200, 8), s.numbered(100, 9)), (Some(2), Some(1)));
        assert_eq!((s.of(8), s.of(9)), (2, 1));
        assert_eq!(s.table(), [(8, 2), (9, 1)]);
        assert_eq!((s.leaving(100), s.leaving(100)), (Some(1), None));
        assert_eq!((s.is_over(1), s.is_over(2)), (true, false));
        // Set 0, one that others have, and one that others had.
        for set in [0, 2, 1] {
            assert!(!enter(&mut s, 300 + u64::from(set), 7, set), "{set}");
        }
        // It has one already.
        assert!(!enter(&mut s, 200, 7, 3));
    }

    #[test]
    fn a_control_group_has_one_set_at_a_time() {
        let groups = || {
            let mut s = Scopes::new(Sets::Cgroup);
            assert!(enter(&mut s, 100, 7, 1) && enter(&mut s, 200, 8, 2));
            assert!(enter(&mut s, 300, 7, 1));
            s
        };
        for wrong in [0, 2, 3] {
            assert!(!enter(&mut groups(), 400, 7, wrong));
        }
        let mut s = groups();
        assert_eq!((s.leaving(100), s.leaving(300)), (None, Some(1)));
        assert!(s.is_empty(1) && s.is_over(1));
        // One that was on the way may come to the same set or to another one.
        s.entering(STACKS[1], 400, 7);
        assert!(s.is_empty(1) && !s.is_over(1));
        assert!(s.entered(STACKS[1], 1).is_ok());
        assert_eq!((s.is_empty(1), s.leaving(400)), (false, Some(1)));
        assert!(enter(&mut s, 500, 7, 3));
        assert!(!enter(&mut s, 600, 7, 1));
    }
}
