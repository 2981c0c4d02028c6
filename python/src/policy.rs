//! Policies that are written in Python.
//!
//! There are two kinds. An object with a method `victim` decides which page to replace, and nothing
//! else: postproc's own engine keeps which pages are in memory, and counts. An object with a method
//! `access` is a whole memory: it says of each reference whether it hits.

use std::sync::{Arc, Mutex, PoisonError};

use postproc::error::Error;
use postproc::pipeline::{Batch, Consumer, World};
use postproc::sim::{Access, Counts, Engine, Kind, Policy, Simulation, push_accesses, push_freed};
use postproc::trace::Trace;
use postproc::units::CanonPage;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::fail::{Failure, Result, Signals};
use crate::simulate::{Asked, Given, Row, Sink, rows};
use crate::table;

/// Accesses that are handed to Python at a time.
const BLOCK: usize = 1 << 12;

/// The first exception of a policy.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn set(&self, error: PyErr) {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.get_or_insert(error);
    }

    fn take(&self) -> Option<PyErr> {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.take()
    }
}

/// The methods of a policy that chooses victims.
struct Methods {
    name: String,
    hit: Py<PyAny>,
    insert: Py<PyAny>,
    victim: Py<PyAny>,
    forget: Py<PyAny>,
    /// By page: whether it is in memory. What a policy in Python says is not trusted.
    resident: Vec<bool>,
    raised: Raised,
}

impl Methods {
    fn call(&self, method: &Py<PyAny>, page: CanonPage) {
        Python::attach(|py| {
            if let Err(error) = method.call1(py, (page.0,)) {
                self.raised.set(error);
            }
        });
    }

    fn chosen(&self, incoming: CanonPage) -> PyResult<CanonPage> {
        Python::attach(|py| {
            let victim = self.victim.call1(py, (incoming.0,))?;
            let victim = victim.bind(py);
            let page: Option<u32> = victim.extract().ok();
            let page = page.filter(|page| {
                let resident = self.resident.get(*page as usize);
                resident.is_some_and(|resident| *resident)
            });
            page.map(CanonPage).ok_or_else(|| {
                let shown = victim.repr().map_or("?".into(), |r| r.to_string());
                PyValueError::new_err(format!(
                    "{}.victim() returned {shown}, which is no page in memory",
                    self.name
                ))
            })
        })
    }
}

impl Policy for Methods {
    fn grow(&mut self, pages: usize) {
        self.resident.resize(pages, false);
    }

    fn hit(&mut self, page: CanonPage) {
        self.call(&self.hit, page);
    }

    fn victim(&mut self, incoming: CanonPage) -> Option<CanonPage> {
        match self.chosen(incoming) {
            Ok(page) => {
                self.resident[page.index()] = false;
                Some(page)
            }
            Err(error) => {
                self.raised.set(error);
                None
            }
        }
    }

    fn insert(&mut self, page: CanonPage) {
        self.resident[page.index()] = true;
        self.call(&self.insert, page);
    }

    fn forget(&mut self, page: CanonPage) {
        self.resident[page.index()] = false;
        self.call(&self.forget, page);
    }
}

/// A whole memory in Python.
struct Memory {
    access: Py<PyAny>,
    free: Option<Py<PyAny>>,
    seen: Vec<bool>,
    counts: Counts,
}

impl Memory {
    fn access(&mut self, py: Python<'_>, access: Access) -> PyResult<()> {
        let at = access.page.index();
        if access.kind == Kind::Free {
            if let (Some(seen), Some(free)) = (self.seen.get_mut(at), &self.free) {
                if std::mem::take(seen) {
                    free.call1(py, (access.page.0,))?;
                }
            }
            return Ok(());
        }
        if at >= self.seen.len() {
            self.seen.resize((at + 1).next_power_of_two(), false);
        }
        let hit = self.access.call1(py, (access.page.0, access.writes()))?;
        let hit = hit.bind(py).is_truthy()?;
        let is_first = !std::mem::replace(&mut self.seen[at], true);
        if hit && is_first {
            return Err(PyValueError::new_err(format!(
                "access() said that page {} was in memory, but it was never referenced before",
                access.page.0
            )));
        }
        self.counts.references += 1;
        self.counts.misses += u64::from(!hit);
        self.counts.cold += u64::from(is_first);
        Ok(())
    }
}

enum Kindred {
    Victims(Engine<Methods>),
    Memory(Memory),
}

/// One policy of a size.
struct One {
    name: String,
    size: Option<u64>,
    raised: Raised,
    kind: Kindred,
}

/// Simulates policies in Python.
pub struct Policies {
    all: Vec<One>,
    block: Vec<Access>,
    failure: Option<PyErr>,
}

fn method(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Py<PyAny>>> {
    Ok(object.getattr_opt(name)?.map(Bound::unbind))
}

impl One {
    fn new(object: &Bound<'_, PyAny>, size: Option<u64>) -> PyResult<Self> {
        let class = object.get_type().name()?.to_string();
        let name = match object.getattr_opt("name")? {
            Some(name) => name.extract().unwrap_or_else(|_| class.clone()),
            None => class.clone(),
        };
        let needed = |what: &str| {
            let found = method(object, what)?;
            found.ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "{class} has no method {what}: a policy has victim, hit, insert and forget, or \
                     access and free (see kvmtrace.Policy and kvmtrace.Memory)"
                ))
            })
        };
        let raised = Raised::default();
        if let Some(victim) = method(object, "victim")? {
            let size = size.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "give sizes: {class} chooses victims, and does not keep how many pages are in \
                     memory"
                ))
            })?;
            let methods = Methods {
                name: class.clone(),
                hit: needed("hit")?,
                insert: needed("insert")?,
                victim,
                forget: needed("forget")?,
                resident: Vec::new(),
                raised: raised.clone(),
            };
            return Ok(One {
                name,
                size: Some(size),
                raised,
                kind: Kindred::Victims(Engine::new(methods, size)),
            });
        }
        let told = object.getattr_opt("size")?;
        let told = told.and_then(|told| told.extract::<u64>().ok());
        Ok(One {
            name,
            size: size.or(told),
            raised,
            kind: Kindred::Memory(Memory {
                access: needed("access")?,
                free: method(object, "free")?,
                seen: Vec::new(),
                counts: Counts::default(),
            }),
        })
    }

    fn accesses(&mut self, py: Python<'_>, block: &[Access]) -> PyResult<()> {
        match &mut self.kind {
            Kindred::Victims(engine) => {
                for access in block {
                    engine.references(std::slice::from_ref(access));
                    if let Some(error) = self.raised.take() {
                        return Err(error);
                    }
                }
            }
            Kindred::Memory(memory) => {
                for access in block {
                    memory.access(py, *access)?;
                }
            }
        }
        Ok(())
    }

    fn row(&self) -> Row {
        let (counts, knows_dirty) = match &self.kind {
            Kindred::Victims(engine) => (engine.counts(), true),
            Kindred::Memory(memory) => (memory.counts, false),
        };
        Row {
            policy: self.name.clone(),
            size_pages: self.size,
            counts,
            band: None,
            measured: None,
            knows_dirty,
        }
    }
}

impl Policies {
    /// Of a policy for each size: each is an object, and the size of its memory if that is known.
    pub fn new(objects: &[(Bound<'_, PyAny>, Option<u64>)]) -> PyResult<Self> {
        let all = objects.iter().map(|(object, size)| One::new(object, *size));
        Ok(Policies {
            all: all.collect::<PyResult<_>>()?,
            block: Vec::with_capacity(BLOCK),
            failure: None,
        })
    }

    fn send(&mut self) -> postproc::error::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let done = Python::attach(|py| {
            for one in &mut self.all {
                one.accesses(py, &self.block)?;
            }
            Ok(())
        });
        self.block.clear();
        done.map_err(|error| {
            self.failure.get_or_insert(error);
            Error::Interrupted
        })
    }

    fn send_if_full(&mut self) -> postproc::error::Result<()> {
        match self.block.len() >= BLOCK {
            true => self.send(),
            false => Ok(()),
        }
    }

    /// Simulates them.
    pub fn run(
        mut self,
        trace: &Trace,
        signals: &mut Signals,
        asked: &Asked,
    ) -> Result<(Given, table::Batch)> {
        let given = asked.read(trace, signals, &mut self, false, None);
        // A reading that has failed calls the policy no more.
        let last = given.as_ref().map_or(Ok(()), |_| self.send());
        if let Some(error) = self.failure {
            return Err(Failure::Python(error));
        }
        let given = given?;
        last?;
        let batch = rows(self.all.iter().map(One::row).collect())?;
        Ok((given, batch))
    }
}

impl Sink for Policies {
    fn accesses(&mut self, accesses: &[Access]) {
        self.block.extend_from_slice(accesses);
        // What goes wrong is kept, and found at the end if not before.
        let _ = self.send_if_full();
    }
}

impl Consumer for Policies {
    fn references(&mut self, batch: &Batch<'_>) -> postproc::error::Result<()> {
        if self.failure.is_some() {
            return Err(Error::Interrupted);
        }
        push_accesses(batch, &mut self.block);
        self.send_if_full()
    }

    fn follows_freed(&self) -> bool {
        // Who is not told that a page has ended would take another page of its number for it.
        let is_told = |one: &One| match &one.kind {
            Kindred::Victims(_) => true,
            Kindred::Memory(memory) => memory.free.is_some(),
        };
        self.all.iter().all(is_told)
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> postproc::error::Result<()> {
        push_freed(pages, &mut self.block);
        self.send_if_full()
    }
}
