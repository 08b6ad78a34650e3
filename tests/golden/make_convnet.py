#!/usr/bin/env python3
"""Writes convnet.safetensors: what PyTorch computes for a tiny residual network, in double precision.

    pip install torch safetensors && python3 tests/golden/make_convnet.py

ResNet-8 for images of 7 x 7 with 2 channels, as in torchvision (BasicBlock, shortcuts of one pixel with a norm where
the shape changes), under torchvision's names:

    parameter/<name>    float64, as they lie in PyTorch: of a convolution (outputs, channels, height, width)
    gradient/<name>     of the loss, float64
    buffer/<name>       running means and variances after one forward pass in training
    loss                (1) float64, the mean cross-entropy in training
    evaluated           (1) float64, the same of the same images after that pass, with the running statistics
    images              (B, height, width, channels) float32: channels innermost
    targets             (B) int32
"""
import pathlib

import safetensors.torch
import torch
from torch import nn

BATCH, SIDE, COLORS, CLASSES, CHANNELS = 5, 7, 2, 3, 4


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(COLORS, CHANNELS, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(CHANNELS)
        self.layer1 = nn.Sequential(Block(CHANNELS, CHANNELS, 1))
        self.layer2 = nn.Sequential(Block(CHANNELS, 2 * CHANNELS, 2))
        self.layer3 = nn.Sequential(Block(2 * CHANNELS, 4 * CHANNELS, 2))
        self.fc = nn.Linear(4 * CHANNELS, CLASSES)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def main():
    torch.manual_seed(3)
    net = Net().double().train()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "bn" in name or "downsample.1" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    images = torch.randn(BATCH, SIDE, SIDE, COLORS).float()
    targets = torch.randint(CLASSES, (BATCH,))
    tensors = {f"parameter/{name}": parameter.detach().clone() for name, parameter in net.named_parameters()}
    loss = nn.functional.cross_entropy(net(images.double().permute(0, 3, 1, 2)), targets)
    loss.backward()
    tensors |= {f"gradient/{name}": parameter.grad for name, parameter in net.named_parameters()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in net.named_buffers() if "running" in name}
    net.eval()
    with torch.no_grad():
        evaluated = nn.functional.cross_entropy(net(images.double().permute(0, 3, 1, 2)), targets)
    tensors |= {"loss": loss.detach().reshape(1), "evaluated": evaluated.reshape(1), "images": images,
                "targets": targets.int()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, pathlib.Path(__file__).parent / "convnet.safetensors")


if __name__ == "__main__":
    main()
