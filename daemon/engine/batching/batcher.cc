#include "daemon/engine/batching/batcher.h"

#include <algorithm>
#include <utility>

namespace tensorlane::engine {
namespace {

class Batcher {
 public:
  explicit Batcher(const NetworkModel& model) : model_(model) {}

  void queue(Batch&& batch, Duration now) {
    batch.sent = now;
    queue_done_ = std::max(queue_done_, now) + model_.time(batch.size);
    sent_.push_back(std::move(batch));
  }

  void queue_open(Duration now) {
    if (!open_.members.empty()) queue(std::exchange(open_, {}), now);
  }

  void add(const Update& update) {
    open_.members.push_back(update.tensor);
    open_.size += update.size;
  }

  Bytes open_size() const { return open_.size; }
  Duration queue_done() const { return queue_done_; }
  std::vector<Batch> take() { return std::move(sent_); }

 private:
  const NetworkModel& model_;
  Batch open_;
  Duration queue_done_;
  std::vector<Batch> sent_;
};

}  // namespace

std::vector<Batch> batch_updates(std::span<const Update> updates, const NetworkModel& model, Bytes threshold) {
  std::vector<Update> sorted(updates.begin(), updates.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const Update& a, const Update& b) { return a.ready < b.ready; });
  Batcher batcher(model);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Update& update = sorted[i];
    if (update.size > threshold)
      batcher.queue({{update.tensor}, update.size, {}}, update.ready);
    else
      batcher.add(update);
    const bool last = i + 1 == sorted.size();
    // "Done before the next update" also when both are at one moment: the network would have nothing to do at it.
    if (last || batcher.open_size() > threshold || batcher.queue_done() <= sorted[i + 1].ready)
      batcher.queue_open(update.ready);
  }
  return batcher.take();
}

}  // namespace tensorlane::engine
