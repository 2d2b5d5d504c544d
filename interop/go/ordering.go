package main

// Orderly consumers. Each message becomes an event when its handler ends, with the times at which
// it began and ended; its property `slow` says how long that takes (ms), `fail` how many tries do.

import (
	"context"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func number(message *primitive.MessageExt, property string) int {
	value, _ := strconv.Atoi(message.GetProperty(property))
	return value
}

func startOrdered(given command) (any, error) {
	made, err := rocketmq.NewPushConsumer(append(options(given),
		consumer.WithConsumerOrder(true),
		consumer.WithConsumeGoroutineNums(8),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond))...)
	if err != nil {
		return nil, err
	}
	handle := func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, received := range messages {
			begun := time.Now().UnixMilli()
			fails := int(received.ReconsumeTimes) < number(received, "fail")
			time.Sleep(time.Duration(number(received, "slow")) * time.Millisecond)
			shown := show(received)
			shown["begun"] = begun
			shown["ended"] = time.Now().UnixMilli()
			shown["failed"] = fails
			emit(object{"event": "message", "name": given.Name, "message": shown})
			if fails {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	for topic, expression := range given.Topics {
		filter := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
		if err = made.Subscribe(topic, filter, handle); err != nil {
			return nil, err
		}
	}
	tableLock.Lock()
	pushers[given.Name] = made
	tableLock.Unlock()
	return given.Instance, made.Start()
}
