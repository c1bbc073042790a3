// SPDX-License-Identifier: Apache-2.0
//
// Threads: the model's thread calls everything public; readers run run_reader(). One mutex guards residency, batch and queues;
// it is never held while bytes move. Digests of an expert are touched only by the reader that has its job, and jobs change
// hands under the mutex.
#include "experts/store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/check.h"
#include "base/function_ref.h"
#include "base/log.h"
#include "base/thread.h"
#include "experts/reader.h"
#include "experts/residency.h"

namespace pointsman {
namespace {

// A queue of fixed capacity: never full by construction (one entry per slot, or per id of a batch).
template <class T>
class Ring {
 public:
  explicit Ring(size_t capacity) : items_(capacity) {}
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T front() const { return items_[head_]; }
  void push(T item) {
    PM_CHECK(size_ < items_.size());
    items_[(head_ + size_++) % items_.size()] = item;
  }
  T pop() {
    PM_CHECK(size_ > 0);
    const T item = items_[head_];
    head_ = (head_ + 1) % items_.size();
    --size_;
    return item;
  }
  static uint64_t table_bytes(uint64_t capacity) { return capacity * sizeof(T); }

 private:
  std::vector<T> items_;
  size_t head_ = 0, size_ = 0;
};

struct Job {
  int32_t slot = -1;
  int32_t batch_idx = -1;  // -1: read ahead
  uint64_t batch_no = 0;
};

// An expert that may be asked for. It has no slot before its read begins: nobody leaves for a read that is never made.
struct Guess {
  int32_t layer = -1, expert = -1;
};

// Reads of guesses at a time. What a layer leaves idle of the disk is less than one expert's time; more reads at once make all of them
// come too late, and delay those of the next layer (docs/performance.md).
constexpr int kMostGuessesAtOnce = 1;

// What a slot's bytes have to do with reading ahead.
struct AheadSlot {
  bool is_unused = false;      // read ahead, and no batch has asked for it
  bool is_predicted = false;   // a guess: dropped when its layer is reached without asking for it
  int32_t joined_idx = -1;     // being read ahead, and the batch waits for it under this index
};

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

uint64_t num_records(const ExpertCatalogue& c) {
  return static_cast<uint64_t>(c.num_layers()) * static_cast<uint64_t>(c.num_experts());
}

Status check_arguments(const Device& device, const Checkpoint& checkpoint, const ExpertCatalogue& catalogue,
                       const ExpertStoreOptions& options) {
  if (options.num_slots < 1 || options.num_slots > (int64_t{1} << 24)) {
    return error(StatusCode::kInvalidArgument, "expert store: {} slots: expected 1 to 2^24", options.num_slots);
  }
  if (options.num_readers < 1 || options.num_readers > 256) {
    return error(StatusCode::kInvalidArgument, "expert store: {} readers: expected 1 to 256", options.num_readers);
  }
  if (num_records(catalogue) == 0) return error(StatusCode::kInvalidArgument, "expert store: the catalogue has no experts");
  const auto files = checkpoint.files();
  for (int layer = 0; layer < catalogue.num_layers(); ++layer) {
    for (int expert = 0; expert < catalogue.num_experts(); ++expert) {
      const ExpertInfo& info = catalogue.at(layer, expert);
      uint64_t end = 0;
      for (const ExpertPartInfo& part : info.parts) {
        const bool inside = part.file_idx < files.size() && part.size_bytes <= files[part.file_idx].info.size_bytes &&
                            part.offset <= files[part.file_idx].info.size_bytes - part.size_bytes;
        if (!inside || part.slot_offset < end) {
          return error(StatusCode::kInternal, "{}: its catalogue entry is out of its file or its parts overlap in the slot",
                       catalogue.describe(layer, expert, checkpoint));
        }
        end = part.slot_offset + part.size_bytes;
      }
      if (options.verify == VerifyMode::kLockRequired && !info.sha256) {
        return error(
            StatusCode::kNotFound,
            "{}: no digest '{}' in {}; make one with 'pointsman lock' from a copy that you trust, or allow unlocked models",
            catalogue.describe(layer, expert, checkpoint), catalogue.lock_key(layer, expert), kLockFileName);
      }
      if (options.verify == VerifyMode::kLockFast && !info.xxh3) {
        return error(StatusCode::kNotFound,
                     "{}: no XXH3-128 for '{}' in {}, which fast verification needs; write the file anew with 'pointsman lock', or verify in full",
                     catalogue.describe(layer, expert, checkpoint), catalogue.lock_key(layer, expert), kLockFileName);
      }
    }
  }
  if (!device.host_visible() && options.compute_stream == nullptr) {
    return error(StatusCode::kInvalidArgument, "expert store: device '{}' computes asynchronously: compute_stream must be set",
                 device.name());
  }
  return ok_status();
}

}  // namespace

struct ExpertStore::Impl {
  Impl(const Checkpoint& cp, const ExpertCatalogue& c, ExpertStoreOptions o)
      : checkpoint(cp),
        catalogue(c),
        options(std::move(o)),
        compute(options.compute_stream != nullptr && !options.compute_stream->is_immediate() ? options.compute_stream
                                                                                             : nullptr),
        slot_bytes(c.slot_bytes()),
        remembered(num_records(c)),
        stats(static_cast<size_t>(c.num_layers())),
        jobs(static_cast<size_t>(options.num_slots)),
        ahead(static_cast<size_t>(options.num_slots)),
        guessed(static_cast<size_t>(c.num_experts())),
        ahead_slots(static_cast<size_t>(options.num_slots)),
        ready(static_cast<size_t>(c.num_experts())),
        reading(static_cast<size_t>(options.num_readers), -1),
        ids(static_cast<size_t>(c.num_experts())),
        waiting(static_cast<size_t>(c.num_experts())),
        seen_in_batch(static_cast<size_t>(c.num_experts()), 0) {
    guesses.reserve(static_cast<size_t>(c.num_experts()));
  }

  // The vectors and rings above.
  static uint64_t table_bytes(const ExpertCatalogue& c, const ExpertStoreOptions& o) {
    const auto slots = static_cast<uint64_t>(o.num_slots);
    const auto layers = static_cast<uint64_t>(c.num_layers());
    const auto experts = static_cast<uint64_t>(c.num_experts());
    return sizeof(Impl) + Residency::table_bytes(slots, layers, experts) + layers * experts * sizeof(RememberedDigest) +
           layers * sizeof(ExpertLayerStats) + 2 * Ring<Job>::table_bytes(slots) + Ring<Guess>::table_bytes(experts) +
           slots * sizeof(AheadSlot) + experts * sizeof(int32_t) + 2 * Ring<Job>::table_bytes(experts) +
           Ring<int32_t>::table_bytes(experts) + experts * sizeof(uint64_t) +
           static_cast<uint64_t>(o.num_readers) * kReaderTableBytes;
  }

  RememberedDigest& remembered_of(const Slot& slot) {
    return remembered[static_cast<size_t>(slot.layer) * static_cast<size_t>(catalogue.num_experts()) +
                      static_cast<size_t>(slot.expert)];
  }
  ExpertLayerStats& stats_of(int layer_idx) { return stats[static_cast<size_t>(layer_idx)]; }

  // All below: REQUIRES the mutex, except run_reader.
  void submit_waiting();
  void finish_job(Job job, const Slot& slot, Status status, const ReadOutcome& outcome, uint64_t read_ns);
  void run_reader(size_t reader_idx);
  // Waits for the next event, for at most the time-out after the last finished read. False when that is over.
  bool wait_for_progress(std::unique_lock<std::mutex>& lock, FunctionRef<bool()> is_done);
  Status overdue() const;
  // Takes the job of a slot out of the queue of reads ahead; false when a reader has it already.
  bool take_ahead(int32_t slot);
  // When no read of a batch waits or is under way.
  bool may_start_guess() const { return !guessed.empty() && num_reading == 0 && num_guessing < kMostGuessesAtOnce; }
  // The job of the best guess; without a slot when there is none for it.
  Job start_guess();
  // Is there room for one more read ahead of an expert of this layer? A batch needs two slots at least; half of the others leave it more.
  bool has_room_ahead(int moe_layer_idx) const;
  // Gives an expert a slot to be read ahead into.
  Job reserve_ahead(int moe_layer_idx, int expert, bool predicted);
  // A batch asks for what is in a slot, or on its way there.
  void take(int32_t slot, int32_t batch_idx);
  // Guesses about a layer whose routes are known now: reads that have not begun are dropped, the others were for nothing.
  void end_guesses(int moe_layer_idx);
  void drop_guesses();
  void count_waste(int moe_layer_idx) { stats_of(moe_layer_idx).predicted_wasted_bytes += catalogue.at(moe_layer_idx, 0).size_bytes(); }
  // Gives up a queued read ahead, so that a batch gets its slot. False when there is none.
  bool drop_one_ahead();
  // Gives up all of them and waits for those in flight.
  void drop_all_ahead(std::unique_lock<std::mutex>& lock);

  const Checkpoint& checkpoint;
  const ExpertCatalogue& catalogue;
  const ExpertStoreOptions options;
  Stream* const compute;  // null when its work has run by the time a handle is released
  const uint64_t slot_bytes;
  std::unique_ptr<Device> host = make_cpu_device();  // staging lives here
  Charge table_charge, stack_charge;
  Buffer slots;
  std::vector<RememberedDigest> remembered;  // [layers * experts]

  std::mutex mutex;
  std::condition_variable work;      // readers: a job, or stop
  std::condition_variable progress;  // the model's thread: a job has ended
  std::unique_ptr<Residency> residency;
  std::vector<ExpertLayerStats> stats;
  Ring<Job> jobs;   // submitted, not taken by a reader
  Ring<Job> ahead;    // the same for reads ahead: taken when `jobs` is empty
  Ring<Guess> guessed;  // about the next batch, best first: read when no batch reads
  std::vector<AheadSlot> ahead_slots;
  std::vector<int32_t> guesses;  // slots of the last prediction
  int num_guessing = 0;          // of num_reading_ahead
  int num_reading_ahead = 0;
  int num_joined = 0;  // slots with a joined_idx
  Ring<Job> ready;  // resident, pinned, not handed out
  int num_reading = 0;
  bool is_overdue = false;      // reads of this batch
  int num_overdue = 0;          // reads of earlier batches, which ended without them
  uint64_t num_finished = 0;    // reads, ever
  std::vector<int32_t> reading;  // by reader: the slot it fills, or -1
  bool stop = false;

  // The batch.
  int layer = -1;  // -1: none
  size_t num_ids = 0;
  size_t num_handed_out = 0;
  std::vector<int32_t> ids;
  Ring<int32_t> waiting;  // batch indices of misses that found no slot yet
  Status failure;         // the first of this batch
  uint64_t batch_no = 0;
  std::vector<uint64_t> seen_in_batch;  // by expert: the last batch that named it

  ReadMethod io = ReadMethod::kPread;
  std::vector<std::unique_ptr<ExpertReader>> readers;
  std::vector<Thread> threads;  // last: joined before anything they use goes
};

void ExpertStore::Impl::submit_waiting() {
  while (!waiting.empty()) {
    const Residency::Reservation r = residency->reserve(layer, ids[static_cast<size_t>(waiting.front())]);
    if (r.slot < 0 && drop_one_ahead()) continue;
    if (r.slot < 0) return;
    const AheadSlot before = std::exchange(ahead_slots[static_cast<size_t>(r.slot)], {});
    if (r.evicted_layer >= 0) {
      ++stats_of(r.evicted_layer).evicted;
      if (before.is_predicted && before.is_unused) count_waste(r.evicted_layer);
    }
    jobs.push({.slot = r.slot, .batch_idx = waiting.pop(), .batch_no = batch_no});
    work.notify_one();
  }
}

void ExpertStore::Impl::finish_job(Job job, const Slot& slot, Status status, const ReadOutcome& outcome, uint64_t read_ns) {
  ++num_finished;
  ExpertLayerStats& s = stats_of(slot.layer);
  s.bytes_read += outcome.bytes;
  s.read_ns += read_ns;
  s.verified_sha256 += outcome.verified_sha256;
  s.verified_lock_xxh3 += outcome.verified_lock_xxh3;
  s.verified_xxh3 += outcome.verified_xxh3;
  if (job.batch_idx < 0) {
    const bool predicted = ahead_slots[static_cast<size_t>(job.slot)].is_predicted;
    (predicted ? s.predicted_bytes : s.prefetch_bytes) += outcome.bytes;
    --num_reading_ahead;
    num_guessing -= predicted ? 1 : 0;
    const int32_t joined = std::exchange(ahead_slots[static_cast<size_t>(job.slot)].joined_idx, -1);
    num_joined -= joined >= 0 ? 1 : 0;
    if (!status.ok()) {
      residency->abandon(job.slot);
      ahead_slots[static_cast<size_t>(job.slot)] = {};
      if (joined < 0) ++(predicted ? s.predicted_failed : s.prefetch_failed);
      if (joined >= 0 && failure.ok()) failure = std::move(status);
    } else {
      residency->loaded(job.slot);
      if (joined >= 0) {
        ready.push({.slot = job.slot, .batch_idx = joined});
      } else {
        residency->unpin(job.slot, 0);
      }
    }
    submit_waiting();  // its slot may be what a batch waits for
    progress.notify_one();
    return;
  }
  if (job.batch_no != batch_no) {  // its batch did not wait for it
    --num_overdue;
    if (status.ok()) {
      residency->loaded(job.slot);
      residency->unpin(job.slot, 0);
    } else {
      residency->abandon(job.slot);
    }
    progress.notify_one();
    return;
  }
  if (status.ok()) {
    residency->loaded(job.slot);
    ready.push(job);
  } else {
    residency->abandon(job.slot);
    if (failure.ok()) failure = std::move(status);
  }
  if (--num_reading == 0 && !guessed.empty()) work.notify_all();
  progress.notify_one();
}

void ExpertStore::Impl::run_reader(size_t reader_idx) {
  ExpertReader& reader = *readers[reader_idx];
  std::unique_lock lock(mutex);
  for (;;) {
    work.wait(lock, [this] { return stop || !jobs.empty() || !ahead.empty() || may_start_guess(); });
    if (stop) return;
    const Job job = !jobs.empty() ? jobs.pop() : !ahead.empty() ? ahead.pop() : start_guess();
    if (job.slot < 0) continue;
    ++(job.batch_idx < 0 ? num_reading_ahead : num_reading);
    const Slot slot = residency->slot(job.slot);
    reading[reader_idx] = job.slot;
    RememberedDigest& digest = remembered_of(slot);
    lock.unlock();

    const uint64_t start = now_ns();
    ReadOutcome outcome;
    std::byte* const bytes = slots.bytes() + static_cast<uint64_t>(job.slot) * slot_bytes;
    Status status = reader.read(slot.layer, slot.expert, bytes, slot.ticket, digest, outcome);
    const uint64_t read_ns = now_ns() - start;

    lock.lock();
    reading[reader_idx] = -1;
    finish_job(job, slot, std::move(status), outcome, read_ns);
  }
}

bool ExpertStore::Impl::wait_for_progress(std::unique_lock<std::mutex>& lock, FunctionRef<bool()> is_done) {
  while (!is_done()) {
    const uint64_t seen = num_finished;
    if (!progress.wait_for(lock, std::chrono::milliseconds(options.read_timeout_ms), [&] { return is_done() || num_finished != seen; })) return false;
  }
  return true;
}

Status ExpertStore::Impl::overdue() const {
  std::string names;
  for (const int32_t slot : reading) {
    if (slot < 0) continue;
    const Slot& s = residency->slot(slot);
    names += (names.empty() ? "" : ", ") + catalogue.describe(s.layer, s.expert, checkpoint);
  }
  return error(StatusCode::kDeadlineExceeded,
               "no read of an expert has come back for {:.1f} s: {}; the disk or its network hangs (the kernel's log may say more)",
               static_cast<double>(options.read_timeout_ms) * 1e-3, names);
}

bool ExpertStore::Impl::take_ahead(int32_t slot) {
  bool found = false;
  for (size_t i = ahead.size(); i > 0; --i) {
    const Job job = ahead.pop();
    if (job.slot == slot) {
      found = true;
    } else {
      ahead.push(job);
    }
  }
  return found;
}

void ExpertStore::Impl::take(int32_t slot, int32_t batch_idx) {
  ExpertLayerStats& s = stats_of(layer);
  AheadSlot& a = ahead_slots[static_cast<size_t>(slot)];
  const bool was_unused = std::exchange(a.is_unused, false);
  const bool is_here = residency->slot(slot).state == SlotState::kResident;
  if (is_here) {
    residency->use(slot);
    ready.push({.slot = slot, .batch_idx = batch_idx});
  } else {
    residency->asked(slot);
    if (take_ahead(slot)) {
      jobs.push({.slot = slot, .batch_idx = batch_idx, .batch_no = batch_no});
      work.notify_one();
    } else {
      a.joined_idx = batch_idx;
      ++num_joined;
    }
  }
  ++s.hits;
  if (was_unused) ++(a.is_predicted ? s.predicted_used : s.prefetch_hits);
}

void ExpertStore::Impl::end_guesses(int moe_layer_idx) {
  drop_guesses();
  for (const int32_t slot : guesses) {
    AheadSlot& a = ahead_slots[static_cast<size_t>(slot)];
    if (!a.is_predicted || !a.is_unused || residency->slot(slot).layer != moe_layer_idx) continue;
    count_waste(moe_layer_idx);
    a.is_unused = false;
  }
  guesses.clear();
}

void ExpertStore::Impl::drop_guesses() {
  while (!guessed.empty()) ++stats_of(guessed.pop().layer).predicted_dropped;
}

bool ExpertStore::Impl::has_room_ahead(int moe_layer_idx) const {
  const size_t most = static_cast<size_t>(std::max<int64_t>(0, options.num_slots - 2)) / 2;
  if (ahead.size() + static_cast<size_t>(num_reading_ahead) >= most) return false;
  const int victim = residency->next_victim(moe_layer_idx);
  return victim != -1 && (victim < 0 || !ahead_slots[static_cast<size_t>(victim)].is_unused);
}

Job ExpertStore::Impl::reserve_ahead(int moe_layer_idx, int expert, bool predicted) {
  const Residency::Reservation r = residency->reserve(moe_layer_idx, expert, Residency::For::kReadAhead);
  if (r.evicted_layer >= 0) ++stats_of(r.evicted_layer).evicted;
  ahead_slots[static_cast<size_t>(r.slot)] = {.is_unused = true, .is_predicted = predicted};
  return {.slot = r.slot};
}

Job ExpertStore::Impl::start_guess() {
  const Guess guess = guessed.pop();
  if (residency->find(guess.layer, guess.expert) >= 0 || !has_room_ahead(guess.layer) || guesses.size() == guesses.capacity()) {
    ++stats_of(guess.layer).predicted_dropped;
    return {};
  }
  ++num_guessing;
  const Job job = reserve_ahead(guess.layer, guess.expert, true);
  guesses.push_back(job.slot);
  return job;
}

bool ExpertStore::Impl::drop_one_ahead() {
  if (ahead.empty()) return false;
  const Job job = ahead.pop();
  residency->abandon(job.slot);
  ahead_slots[static_cast<size_t>(job.slot)] = {};
  return true;
}

void ExpertStore::Impl::drop_all_ahead(std::unique_lock<std::mutex>& lock) {
  drop_guesses();
  while (drop_one_ahead()) {
  }
  static_cast<void>(wait_for_progress(lock, [this] { return num_reading_ahead == 0; }));
}

ExpertStore::ExpertStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ExpertStore::Cost ExpertStore::cost(const ExpertCatalogue& catalogue, const ExpertStoreOptions& options, bool host_visible) {
  const auto readers = static_cast<uint64_t>(options.num_readers);
  return {.slots_bytes = static_cast<uint64_t>(options.num_slots) * catalogue.slot_bytes(),
          .read_buffer_bytes = readers * reader_buffer_bytes(catalogue, options.direct, host_visible),
          .table_bytes = Impl::table_bytes(catalogue, options),
          .stack_bytes = readers * kThreadStackBytes};
}

Result<std::unique_ptr<ExpertStore>> ExpertStore::make(Device& device, MemoryBudget& budget, const Checkpoint& checkpoint,
                                                       const ExpertCatalogue& catalogue, ExpertStoreOptions options) {
  PM_RETURN_IF_ERROR(check_arguments(device, checkpoint, catalogue, options));
  const Cost cost = ExpertStore::cost(catalogue, options, device.host_visible());
  // Charged before anything is allocated.
  PM_ASSIGN_OR_RETURN(Charge tables, Charge::make(budget, MemoryClass::kCatalogue, cost.table_bytes));
  PM_ASSIGN_OR_RETURN(Charge stacks, Charge::make(budget, MemoryClass::kThreadStacks, cost.stack_bytes));
  auto impl = std::make_unique<Impl>(checkpoint, catalogue, std::move(options));
  impl->table_charge = std::move(tables);
  impl->stack_charge = std::move(stacks);
  PM_ASSIGN_OR_RETURN(impl->residency,
                      Residency::make(static_cast<int>(impl->options.num_slots), catalogue.num_layers(),
                                      catalogue.num_experts(), impl->options.policy, impl->options.keep_layer, impl->options.learned_uses));
  PM_ASSIGN_OR_RETURN(impl->slots, Buffer::make(device, budget, MemoryClass::kExpertSlots, cost.slots_bytes));
  ReaderOptions reading{.method = impl->options.io,
                        .direct = impl->options.direct,
                        .verify_fast = impl->options.verify == VerifyMode::kLockFast,
                        .drop_page_cache = impl->options.drop_page_cache};
  while (static_cast<int>(impl->readers.size()) < impl->options.num_readers) {
    auto reader = ExpertReader::make(device, *impl->host, budget, checkpoint, catalogue, impl->compute, reading);
    if (!reader.ok() && reader.status().code() == StatusCode::kUnavailable && reading.method != ReadMethod::kPread) {
      log_warning("{}; experts are read with pread instead", reader.status().message());
      reading.method = ReadMethod::kPread;
      continue;
    }
    if (!reader.ok()) return reader.status();
    impl->readers.push_back(std::move(*reader));
  }
  impl->io = reading.method;
  for (size_t r = 0; r < impl->readers.size(); ++r) {
    impl->threads.emplace_back([i = impl.get(), r] { i->run_reader(r); });
  }
  return std::unique_ptr<ExpertStore>(new ExpertStore(std::move(impl)));
}

ExpertStore::~ExpertStore() {
  end();
  uint64_t last_ticket = 0;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->drop_all_ahead(lock);
    if (impl_->num_reading_ahead > 0 || impl_->num_overdue > 0) {
      log_warning("{}; its memory is left behind", impl_->overdue().message());
      impl_->stop = true;
      impl_->work.notify_all();
      for (size_t r = 0; r < impl_->readers.size(); ++r) {
        if (impl_->reading[r] >= 0) impl_->readers[r]->give_up();
      }
      // Reachable, so that leak checkers know it is meant; never destroyed, because its threads may come back at any time.
      static auto* const left_behind = new std::vector<Impl*>;
      lock.unlock();
      left_behind->push_back(impl_.release());
      return;
    }
    PM_CHECK(impl_->residency->num_pinned() == 0, "an expert handle outlives its store");
    for (int s = 0; s < impl_->residency->num_slots(); ++s)
      last_ticket = std::max(last_ticket, impl_->residency->slot(s).ticket);
    impl_->stop = true;
  }
  impl_->work.notify_all();
  impl_->threads.clear();
  // Submitted work may still read the slots, which are about to be freed. When the stream cannot say so, the device is lost and
  // so is the memory.
  if (last_ticket != 0) static_cast<void>(impl_->compute->wait_from_any_thread(last_ticket));
}

Status ExpertStore::begin(int moe_layer_idx, std::span<const int32_t> expert_ids, std::span<const int32_t> offsets) {
  end();
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  if (m.num_overdue > 0) return m.overdue();
  if (moe_layer_idx < 0 || moe_layer_idx >= m.catalogue.num_layers()) {
    return error(StatusCode::kInvalidArgument, "MoE layer {}: there are {}", moe_layer_idx, m.catalogue.num_layers());
  }
  if (!offsets.empty() && (offsets.size() != static_cast<size_t>(m.catalogue.num_experts()) + 1 || !std::is_sorted(offsets.begin(), offsets.end()))) {
    return error(StatusCode::kInvalidArgument, "layer {}: {} ascending offsets were expected", m.catalogue.layer_id(moe_layer_idx), m.catalogue.num_experts() + 1);
  }
  ++m.batch_no;
  for (const int32_t id : expert_ids) {
    if (id < 0 || id >= m.catalogue.num_experts()) {
      return error(StatusCode::kInvalidArgument, "layer {}: expert {}: there are {}", m.catalogue.layer_id(moe_layer_idx), id,
                   m.catalogue.num_experts());
    }
    if (std::exchange(m.seen_in_batch[static_cast<size_t>(id)], m.batch_no) == m.batch_no) {
      return error(StatusCode::kInvalidArgument, "layer {}: expert {} is named twice", m.catalogue.layer_id(moe_layer_idx), id);
    }
    m.catalogue.ask(moe_layer_idx, id);
  }
  m.layer = moe_layer_idx;
  m.num_ids = expert_ids.size();
  ExpertLayerStats& stats = m.stats_of(moe_layer_idx);
  m.residency->begin(moe_layer_idx, expert_ids, offsets);
  // All hits are pinned before the first miss may evict somebody.
  for (size_t i = 0; i < expert_ids.size(); ++i) {
    m.ids[i] = expert_ids[i];
    const int slot = m.residency->find(moe_layer_idx, expert_ids[i]);
    if (slot >= 0) {
      m.take(slot, static_cast<int32_t>(i));
    } else {
      m.waiting.push(static_cast<int32_t>(i));
      ++stats.misses;
    }
  }
  m.end_guesses(moe_layer_idx);
  m.submit_waiting();
  return ok_status();
}

Result<ExpertHandle> ExpertStore::next() {
  return take(true);
}

Result<ExpertHandle> ExpertStore::try_next() {
  return take(false);
}

Result<ExpertHandle> ExpertStore::take(bool waits) {
  Impl& m = *impl_;
  std::unique_lock lock(m.mutex);
  if (m.layer < 0 || m.num_handed_out == m.num_ids) return ExpertHandle();
  if (m.ready.empty() && m.failure.ok()) {
    if (!waits) return ExpertHandle();
    m.submit_waiting();
    if (m.jobs.empty() && m.num_reading == 0 && m.ahead.empty() && m.num_reading_ahead == 0) {
      return error(StatusCode::kInternal,
                   "layer {}: all {} expert slots are pinned by handles that the caller holds, and {} experts wait",
                   m.catalogue.layer_id(m.layer), m.residency->num_slots(), m.waiting.size());
    }
    const uint64_t start = now_ns();
    if (!m.wait_for_progress(lock, [&m] { return !m.ready.empty() || !m.failure.ok(); })) {
      m.failure = m.overdue();
      m.is_overdue = true;
    }
    m.stats_of(m.layer).wait_ns += now_ns() - start;
  }
  if (!m.failure.ok()) return m.failure;
  const Job job = m.ready.pop();
  ++m.num_handed_out;
  ExpertHandle handle;
  handle.store_ = this;
  handle.slot_ = job.slot;
  handle.layer_ = m.layer;
  handle.expert_id_ = m.ids[static_cast<size_t>(job.batch_idx)];
  handle.batch_idx_ = job.batch_idx;
  return handle;
}

void ExpertStore::end() {
  Impl& m = *impl_;
  std::unique_lock lock(m.mutex);
  while (!m.waiting.empty()) m.waiting.pop();
  while (!m.jobs.empty()) m.residency->abandon(m.jobs.pop().slot);
  if (std::exchange(m.is_overdue, false) || !m.wait_for_progress(lock, [&m] { return m.num_reading == 0; })) {
    m.num_overdue += std::exchange(m.num_reading, 0);
    ++m.batch_no;  // they are no part of what comes
  }
  while (!m.ready.empty()) m.residency->unpin(m.ready.pop().slot, 0);
  // Reads ahead that the batch had joined go on, for whoever comes next.
  for (size_t i = 0; m.num_joined > 0; ++i) {
    if (std::exchange(m.ahead_slots[i].joined_idx, -1) >= 0) --m.num_joined;
  }
  m.failure = ok_status();
  m.layer = -1;
  m.num_ids = m.num_handed_out = 0;
}

Status ExpertStore::prefetch(int moe_layer_idx, std::span<const int32_t> expert_ids, ReadAhead why) {
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  if (moe_layer_idx < 0 || moe_layer_idx >= m.catalogue.num_layers()) {
    return error(StatusCode::kInvalidArgument, "MoE layer {}: there are {}", moe_layer_idx, m.catalogue.num_layers());
  }
  for (const int32_t id : expert_ids) {
    if (id < 0 || id >= m.catalogue.num_experts()) {
      return error(StatusCode::kInvalidArgument, "layer {}: expert {}: there are {}", m.catalogue.layer_id(moe_layer_idx), id,
                   m.catalogue.num_experts());
    }
  }
  // Those that are here are recent now, so that none of them makes room for another.
  for (const int32_t id : expert_ids) {
    const int slot = m.residency->find(moe_layer_idx, id);
    if (slot >= 0 && m.residency->slot(slot).state == SlotState::kResident) m.residency->touch(slot);
  }
  ExpertLayerStats& stats = m.stats_of(moe_layer_idx);
  if (why == ReadAhead::kPredicted) {
    m.drop_guesses();
    for (const int32_t id : expert_ids) {
      if (m.guessed.size() == static_cast<size_t>(m.catalogue.num_experts())) break;  // ids may repeat
      if (m.residency->find(moe_layer_idx, id) >= 0) continue;
      m.guessed.push({.layer = moe_layer_idx, .expert = id});
      ++stats.predicted_reads;
    }
    if (m.may_start_guess()) m.work.notify_one();
    return ok_status();
  }
  for (const int32_t id : expert_ids) {
    if (m.residency->find(moe_layer_idx, id) >= 0) continue;
    if (!m.has_room_ahead(moe_layer_idx)) break;
    m.ahead.push(m.reserve_ahead(moe_layer_idx, id, false));
    ++stats.prefetched;
    m.work.notify_one();
  }
  return ok_status();
}

void ExpertStore::release(int slot) {
  Impl& m = *impl_;
  const uint64_t ticket = m.compute != nullptr ? m.compute->record() : 0;
  std::lock_guard lock(m.mutex);
  m.residency->unpin(slot, ticket);
  m.submit_waiting();
}

Weight ExpertStore::part(int slot, int layer, int expert, ExpertPart p) const {
  PM_CHECK(static_cast<int>(p) < kNumWeightParts);
  return impl_->catalogue.at(layer, expert).weight(p, impl_->slots.bytes() + static_cast<uint64_t>(slot) * impl_->slot_bytes);
}

std::span<const ExpertLayerStats> ExpertStore::stats() const {
  return impl_->stats;
}

void ExpertStore::reset_stats() {
  std::lock_guard lock(impl_->mutex);
  std::fill(impl_->stats.begin(), impl_->stats.end(), ExpertLayerStats{});
}

ReadMethod ExpertStore::io() const {
  return impl_->io;
}

std::vector<uint32_t> ExpertStore::uses() const {
  std::lock_guard lock(impl_->mutex);
  const std::span<const uint32_t> uses = impl_->residency->uses();
  return {uses.begin(), uses.end()};
}

int64_t ExpertStore::num_slots() const {
  return impl_->options.num_slots;
}

void ExpertStore::evict_all(bool forget_digests) {
  std::unique_lock lock(impl_->mutex);
  impl_->drop_all_ahead(lock);
  impl_->residency->evict_unpinned();
  if (forget_digests) {
    PM_CHECK(impl_->layer < 0 && impl_->num_reading + impl_->num_reading_ahead + impl_->num_overdue == 0);
    std::fill(impl_->remembered.begin(), impl_->remembered.end(), RememberedDigest{});
  }
}

ExpertHandle& ExpertHandle::operator=(ExpertHandle&& o) noexcept {
  if (this != &o) {
    release();
    store_ = std::exchange(o.store_, nullptr);
    slot_ = o.slot_;
    layer_ = o.layer_;
    expert_id_ = o.expert_id_;
    batch_idx_ = o.batch_idx_;
  }
  return *this;
}

void ExpertHandle::release() {
  if (store_ != nullptr) std::exchange(store_, nullptr)->release(slot_);
}

Weight ExpertHandle::part(ExpertPart part) const {
  return store_->part(slot_, layer_, expert_id_, part);
}

}  // namespace pointsman
