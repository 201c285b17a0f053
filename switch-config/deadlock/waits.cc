#include "switch-config/deadlock/waits.h"

#include <algorithm>
#include <bit>

namespace tensorlane::deadlock {
namespace {
constexpr std::size_t kWord = 64;
constexpr Channel kNone = ~Channel{0};

// Strongly connected components (Tarjan 1972), without recursion: a path may be as long as the network has channels.
template <typename Next>
class Components {
 public:
  Components(std::size_t channels, Next next) : next_(next), order_(channels), low_(channels), open_(channels) {}

  // Looks at what the root reaches and nothing reached before. Returns one member of each component of several
  // channels.
  std::vector<Channel> visit(Channel root) {
    std::vector<Channel> members;
    if (order_[root] != 0) return members;
    enter(root);
    while (!path_.empty()) {
      const Channel channel = path_.back().channel;
      Channel follower = kNone;
      if (next_(channel, path_.back().from, follower)) {
        if (order_[follower] == 0)
          enter(follower);
        else if (open_[follower])
          low_[channel] = std::min(low_[channel], order_[follower]);
        continue;
      }
      path_.pop_back();
      if (!path_.empty()) low_[path_.back().channel] = std::min(low_[path_.back().channel], low_[channel]);
      if (low_[channel] == order_[channel] && close(channel) > 1) members.push_back(channel);
    }
    return members;
  }

 private:
  struct Step {
    Channel channel;
    std::size_t from;
  };

  void enter(Channel channel) {
    order_[channel] = low_[channel] = ++entered_;
    open_[channel] = 1;
    component_.push_back(channel);
    path_.push_back({channel, 0});
  }

  std::size_t close(Channel first) {
    std::size_t members = 0;
    for (Channel last = kNone; last != first; ++members) {
      last = component_.back();
      component_.pop_back();
      open_[last] = 0;
    }
    return members;
  }

  Next next_;
  std::uint32_t entered_ = 0;
  std::vector<std::uint32_t> order_, low_;  // 0: not entered
  std::vector<char> open_;
  std::vector<Channel> component_;
  std::vector<Step> path_;
};

}  // namespace

Waits::Waits(const Ports& ports) : ports_(ports), matrices_(ports.nodes()) {
  for (NodeIndex node = 0; node < matrices_.size(); ++node) {
    const std::size_t count = ports.of(node).size();
    matrices_[node].words = (count + kWord - 1) / kWord;
    matrices_[node].bits.resize(count * matrices_[node].words);
  }
}

void Waits::add(NodeIndex node, std::size_t in, std::size_t out) {
  Matrix& matrix = matrices_[node];
  matrix.bits[in * matrix.words + out / kWord] |= std::uint64_t{1} << (out % kWord);
}

bool Waits::next(Channel channel, std::size_t& from, Channel& follower) const {
  const auto& end = ports_.end(channel);
  if (!end) return false;
  const Matrix& matrix = matrices_[end->node];
  for (std::size_t word = from / kWord; word < matrix.words; ++word) {
    std::uint64_t bits = matrix.bits[end->port * matrix.words + word];
    if (word == from / kWord) bits &= ~std::uint64_t{0} << (from % kWord);
    if (bits == 0) continue;
    const std::size_t column = word * kWord + static_cast<std::size_t>(std::countr_zero(bits));
    from = column + 1;
    follower = ports_.of(end->node)[column].out;
    return true;
  }
  return false;
}

std::vector<Channel> Waits::shortest_through(Channel start) const {
  std::vector<Channel> before(ports_.channels(), kNone);
  std::vector<Channel> queue{start};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    std::size_t from = 0;
    for (Channel follower = kNone; next(queue[head], from, follower);) {
      if (follower == start) {
        std::vector<Channel> cycle;
        for (Channel at = queue[head]; at != start; at = before[at]) cycle.push_back(at);
        cycle.push_back(start);
        std::reverse(cycle.begin(), cycle.end());
        return cycle;
      }
      if (before[follower] != kNone) continue;
      before[follower] = queue[head];
      queue.push_back(follower);
    }
  }
  return {};
}

std::vector<std::vector<Channel>> Waits::find_cycles(std::size_t most) const {
  std::vector<std::vector<Channel>> cycles;
  Components components(ports_.channels(), [this](Channel channel, std::size_t& from, Channel& follower) {
    return next(channel, from, follower);
  });
  for (Channel root = 0; root < ports_.channels() && cycles.size() < most; ++root)
    for (const Channel member : components.visit(root))
      if (cycles.size() < most) cycles.push_back(shortest_through(member));
  return cycles;
}

}  // namespace tensorlane::deadlock
