#include "daemon/engine/ordering/negotiation.h"

#include "common/base/assert.h"

namespace tensorlane::engine {

void Negotiation::grow(std::size_t tensors) {
  tensors_ = tensors;
  const std::size_t words = (tensors + 63) / 64;
  for (std::uint16_t h = 0; h < hosts_; ++h) {
    if (self_ == kLeader || h == self_.value) given_[h].resize(words);
    if (h != self_.value && (self_ == kLeader || h == kLeader.value)) due_[h].words.resize(words);
  }
}

bool Negotiation::knows(const TensorWord& word) const {
  if (word.bits == 0 || word.index >= (tensors_ + 63) / 64) return false;
  const std::size_t left = tensors_ - std::size_t{word.index} * 64;
  return left >= 64 || word.bits >> left == 0;
}

TensorWord Negotiation::offer(TensorId tensor) {
  const TensorWord word{tensor.value / 64, std::uint64_t{1} << tensor.value % 64};
  TL_ASSERT(knows(word) && (given_[self_.value][word.index] & word.bits) == 0);
  given_[self_.value][word.index] |= word.bits;
  if (self_ == kLeader) return agree(word.index);
  say(kLeader, word);
  return {word.index, 0};
}

bool Negotiation::offered(HostIndex from, const TensorWord& word, TensorWord* agreed) {
  std::uint64_t& given = given_[from.value][word.index];
  if ((given & word.bits) != 0) return false;
  given |= word.bits;
  *agreed = agree(word.index);
  return true;
}

// The conjunction of what the hosts have given.
TensorWord Negotiation::agree(std::uint32_t index) {
  std::uint64_t bits = ~std::uint64_t{0};
  for (const Bits& host : given_) bits &= host[index];
  if (bits == 0) return {index, 0};
  for (std::uint16_t h = 0; h < hosts_; ++h) {
    given_[h][index] &= ~bits;
    if (h != self_.value) say(HostIndex(h), {index, bits});
  }
  return {index, bits};
}

bool Negotiation::agreed(const TensorWord& word) {
  std::uint64_t& given = given_[self_.value][word.index];
  if ((given & word.bits) != word.bits) return false;
  given &= ~word.bits;
  return true;
}

void Negotiation::say(HostIndex peer, const TensorWord& word) {
  Due& due = due_[peer.value];
  if (due.words[word.index] == 0) ++due.count;
  due.words[word.index] |= word.bits;
}

TensorWord Negotiation::take_due(HostIndex peer) {
  Due& due = due_[peer.value];
  TL_ASSERT(due.count > 0);
  while (due.words[due.next] == 0) due.next = (due.next + 1) % static_cast<std::uint32_t>(due.words.size());
  const TensorWord word{due.next, due.words[due.next]};
  due.words[due.next] = 0;
  --due.count;
  return word;
}

}  // namespace tensorlane::engine
